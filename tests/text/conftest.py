"""Small tokenizers in Hugging Face folders: a trained byte-level BPE, and one with byte tokens."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pipeline.spec import ROOT

DEMO_FOLDER = ROOT / ".cache" / "models" / "smollm2-135m-instruct"
SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog. 12345 67890",
    "naïve café Straße 日本語のテキスト 😀😀👍🏽 Привет мир 😀",
    "def f(x):\n    return x + 1\n\n\tif x != 0:\r\n        pass",
] * 5
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_byte_level(folder: Path) -> Path:
    """A byte-level BPE with three special tokens and two ordinary added ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("two words é", normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_byte_fallback(folder: Path) -> Path:
    """A vocabulary with tokens for single bytes; its post-processor puts BOS first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁"]
    tokens += [*string.ascii_letters, "▁a", "▁b", "é", "\ufffd", "."]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [("▁", "▁"), ("▁", "a"), ("▁", "b")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return folder


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def byte_fallback_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_fallback(tmp_path_factory.mktemp("byte_fallback"))


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    if not (DEMO_FOLDER / "tokenizer.json").is_file():
        pytest.skip("the demo model is not there: run build/demo_model.py")
    return DEMO_FOLDER
