from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_to_hf import convert, hf_name, unpermute_rope_rows
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from pipeline.errors import EngineError
from pipeline.text.tokenizer import Tokenizer

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "ĠĠ", "Ġ5", "55"]
MERGES = ["a b", "Ġ Ġ", "Ġ 5", "5 5"]


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Hugging Face's query and key rows."""
    rows, hidden = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def write_gguf(path: Path, splitter: str = "smollm", architecture: str = "llama") -> dict[str, np.ndarray]:
    """A two-layer llama with Q4_1 and Q8_0 weights; returns the exact weights by Hugging Face name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")

    random = np.random.default_rng(7)
    exact: dict[str, np.ndarray] = {}

    def add(name: str, rows: int, columns: int, heads: int = 0) -> None:
        kind = gguf.GGMLQuantizationType.Q8_0 if name.startswith("token") else gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quantize(random.standard_normal((rows, columns)).astype(np.float32), kind)
        weights = gguf.dequantize(packed, kind).astype(np.float16)
        exact[hf_name(name)] = weights
        if heads:  # packing works along columns, so that rows may be moved afterwards
            packed = permute(packed, heads)
        writer.add_tensor(name, packed, raw_dtype=kind)

    def add_norm(name: str) -> None:
        values = random.standard_normal(HIDDEN).astype(np.float32)
        exact[hf_name(name)] = values.astype(np.float16)
        writer.add_tensor(name, values)

    kv_rows = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", len(TOKENS), HIDDEN)
    for layer in range(LAYERS):
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        add(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN, HEADS)
        add(f"blk.{layer}.attn_k.weight", kv_rows, HIDDEN, KV_HEADS)
        add(f"blk.{layer}.attn_v.weight", kv_rows, HIDDEN)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
    add_norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return exact


def test_rope_rows_are_put_back() -> None:
    weights = np.arange(2 * 8 * 3).reshape(16, 3)
    moved = permute(weights, heads=2)
    assert moved[:4, 0].tolist() == [0, 12, 3, 15]  # rows 0, 4, 1, 5 of the first head
    assert np.array_equal(unpermute_rope_rows(moved, heads=2), weights)


def test_converted_folder(tmp_path: Path) -> None:
    exact = write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    seen: list[tuple[int, int]] = []
    convert(tmp_path / "tiny.gguf", folder, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(exact), len(exact))

    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == exact.keys()
    for name, weights in exact.items():
        assert tensors[name].dtype == np.float16
        assert np.array_equal(tensors[name], weights), name

    config = json.loads((folder / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 100000.0)
    assert (config["vocab_size"], config["head_dim"], config["tie_word_embeddings"]) == (
        len(TOKENS),
        16,
        True,
    )

    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.special_ids) == (1, 2, {0, 1, 2})
    spelled = [tokenizer.token(number) for number in tokenizer.encode("ab  55<|im_end|>")]
    assert spelled == ["ab", "ĠĠ", "5", "5", "<|im_end|>"]
    assert tokenizer.apply_chat_template("hi") == "hi"


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    write_gguf(source, splitter="llama-bpe")
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.pre = 'llama-bpe'"):
        convert(source, tmp_path)
    write_gguf(source, architecture="falcon")
    with pytest.raises(EngineError, match=r"general\.architecture = 'falcon'"):
        convert(source, tmp_path)
    for content in (b"", b"no GGUF file", b"GGUF\x03\x00\x00\x00"):
        source.write_bytes(content)
        with pytest.raises(EngineError, match="not a readable GGUF"):
            convert(source, tmp_path)
    with pytest.raises(EngineError, match=r"blk\.0\.ssm_a"):
        hf_name("blk.0.ssm_a")
