"""The module computes what transformers computes, and the writer writes what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_target import VOCAB, write_target
from torch.nn import functional

from pipeline.distillation.llama import causal
from pipeline.distillation.writer import TOP, Job, Target, Writer

CPU = torch.device("cpu")


def logits_of(target: Target, tokens: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(tokens.shape[1])[None]
    with torch.inference_mode():
        hidden = target.layers(target.embedding[tokens].float(), positions, causal)
        return functional.linear(hidden, target.head)


@pytest.mark.parametrize(
    ("kind", "changes", "bias"),
    [
        ("LlamaForCausalLM", {}, False),
        ("LlamaForCausalLM", {"tie_word_embeddings": False}, False),
        ("Qwen2ForCausalLM", {"model_type": "qwen2"}, True),
        ("Qwen3ForCausalLM", {"model_type": "qwen3", "head_dim": 8}, False),
    ],
)
def test_logits_equal_those_of_transformers(kind: str, changes: dict[str, Any], bias: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_target(tmp_path / "m", bias=bias, architectures=[kind], **changes)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(0, VOCAB, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(tokens).logits
    torch.testing.assert_close(
        logits_of(Target(folder, CPU, 64, torch.float32), tokens), expected, atol=2e-4, rtol=1e-3
    )


def test_greedy_texts_are_the_argmax_of_one_pass(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 64, torch.float32)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, VOCAB, (int(n),), generator=generator).tolist() for n in (1, 9, 4, 17, 6, 3, 12)]
    jobs = [Job(str(i), prompt, 0.0, 5 + i) for i, prompt in enumerate(prompts)]
    texts = list(Writer(target, slots=3, seed=0).write(iter(jobs)))
    assert sorted(text.job.name for text in texts) == [str(i) for i in range(len(jobs))]
    for text in texts:
        whole = torch.tensor([text.job.prompt + text.output])
        law = logits_of(target, whole)[0, len(text.job.prompt) - 1 : -1].log_softmax(-1)
        assert text.output == law.argmax(-1).tolist()
        assert len(text.output) == text.job.max_tokens or text.output[-1] == target.config.eos_id
        top = law.gather(1, text.top_ids.long())
        torch.testing.assert_close(text.top_log_probs.float(), top, atol=5e-3, rtol=5e-3)


def test_drawn_tokens_follow_the_law(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 64, torch.float32)
    prompt, temperature, count = [5, 40, 7], 5.0, 3000  # so hot that the tail behind the kept tokens has mass
    jobs = (Job("", prompt, temperature, 1) for _ in range(count))
    drawn = torch.zeros(VOCAB)
    for text in Writer(target, slots=500, seed=3).write(jobs):
        drawn[text.output[0]] += 1
    law = (logits_of(target, torch.tensor([prompt]))[0, -1] / temperature).softmax(-1)
    assert float((drawn / count - law).abs().sum()) / 2 < 0.12  # about 0.07 for this many draws
    tail = law.argsort()[: VOCAB - TOP]
    assert float(drawn[tail].sum() / count) == pytest.approx(float(law[tail].sum()), abs=0.03)
    assert float(law[tail].sum()) > 0.05


def test_a_seed_fixes_the_texts(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 64, torch.float32)

    def texts(seed: int) -> list[list[int]]:
        jobs = [Job("", [4 + i], 1.0, 6) for i in range(4)]
        return [text.output for text in Writer(target, 2, seed).write(iter(jobs))]

    assert texts(1) == texts(1) != texts(2)


def test_a_text_ends_where_its_slot_is_full(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 16, torch.float32)
    target.config = target.config.__class__(**{**vars(target.config), "eos_id": None})
    (text,) = Writer(target, 1, 0).write(iter([Job("", [3] * 10, 0.0, 100)]))
    assert len(text.output) == 6
