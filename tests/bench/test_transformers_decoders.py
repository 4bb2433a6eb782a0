"""transformers beside us: a draft without an embedding of its own, and every setting decodes what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pipeline.bench.contest import Asked
from pipeline.bench.transformers_decoders import (
    ASSISTANT_TOKENS,
    EMBEDDING,
    LOOKUP_TOKENS,
    load_draft,
    plain_name,
    transformers_decoders,
)
from pipeline.errors import EngineError

IDS = (3, 4, 5, 3, 4, 5, 3, 4)


def save(folder: Path, layers: int, seed: int) -> Path:
    """A random tied Llama."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A target, a draft without its embedding, and the same draft with the target's."""
    root = tmp_path_factory.mktemp("models")
    target, whole = save(root / "target", 2, 1), save(root / "whole", 1, 2)
    weights = load_file(whole / "model.safetensors")
    weights[EMBEDDING] = load_file(target / "model.safetensors")[EMBEDDING]
    save_file(weights, whole / "model.safetensors", metadata={"format": "pt"})
    draft = root / "draft"
    draft.mkdir()
    (draft / "config.json").write_text((whole / "config.json").read_text())
    save_file({k: v for k, v in weights.items() if k != EMBEDDING}, draft / "model.safetensors")
    return target, draft, whole


def test_a_draft_without_an_embedding_takes_its_targets(folders: tuple[Path, Path, Path]) -> None:
    target_folder, draft_folder, whole_folder = folders
    target = transformers.AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    whole = transformers.AutoModelForCausalLM.from_pretrained(whole_folder, dtype=torch.float32).eval()
    draft = load_draft(draft_folder, target)
    batch = torch.tensor([IDS])
    with torch.inference_mode():
        assert torch.equal(draft(batch).logits, whole(batch).logits)
        assert not torch.equal(draft(batch).logits, target(batch).logits)


def test_a_draft_that_lacks_more_is_refused(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    target = transformers.AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    (tmp_path / "config.json").write_text((folders[1] / "config.json").read_text())
    weights = load_file(folders[1] / "model.safetensors")
    lost = weights.pop("model.norm.weight")
    save_file({**weights, "model.strange": lost}, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=r"model\.norm\.weight.*model\.strange"):
        load_draft(tmp_path, target)


@pytest.mark.parametrize("few", [False, True])
def test_every_setting_decodes_exactly_what_was_asked_for(folders: tuple[Path, Path, Path], few: bool) -> None:
    decoders, speculative = transformers_decoders(folders[0], folders[1], 7, few, lambda what: None)
    per_dtype = 3 if few else len(ASSISTANT_TOKENS) + 1 + len(LOOKUP_TOKENS)
    assert len(speculative) == 2 * per_dtype and len(decoders) == 2 * (1 + per_dtype)
    assert set(decoders) - set(speculative) == {plain_name("FP32"), plain_name("BF16")}
    for name, decode in decoders.items():
        assert decode(Asked("", "", IDS)) == 7, name


def test_without_a_draft_model_prompt_lookup_is_left(folders: tuple[Path, Path, Path]) -> None:
    _, speculative = transformers_decoders(folders[0], None, 4, False, lambda what: None)
    assert len(speculative) == 2 * len(LOOKUP_TOKENS) and all("prompt lookup" in name for name in speculative)
