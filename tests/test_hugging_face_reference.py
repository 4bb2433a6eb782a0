"""On the demo target, greedy text is Hugging Face `generate`'s: the same FP32 weights, speculation on and off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeline.engine.embedded import EmbeddedStepModel, make_decoder
from pipeline.engine.manifest import Limits, Manifest
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import CheckpointReader, fused_tensors, load_weights, save_weights
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.sampling.params import OPTIONS, SamplingParams
from pipeline.sampling.rules import PREFERENCE
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

pytestmark = pytest.mark.demo

FOLDER = ROOT / ".cache" / "models" / "smollm2-135m-instruct"
LENGTH = 24
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    'Repeat exactly: "red, green, blue, red, green, blue". red, green,',
)
LIMITS = Limits(max_seq_len=128, max_draft_len=8, max_requests=2, kv_blocks=32, tokens_per_block=16)


@pytest.fixture(scope="module")
def reference() -> Any:
    if not (FOLDER / "model.safetensors").is_file():
        pytest.skip("the demo model is not there: run build/demo_model.py")
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def orchestrator(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    """The demo target in float32, with n-gram drafts: K tokens of the text itself are verified at once."""
    engine = tmp_path_factory.mktemp("fp32")
    config = ModelConfig.read(FOLDER)
    save_weights(engine, fused_tensors(config, CheckpointReader(FOLDER), None, None), "float32")
    decoder = make_decoder(config, load_weights(engine), "float32", LIMITS)
    tokenizer = Tokenizer.load(FOLDER)
    spec = DeploymentSpec.model_validate(
        {
            "name": "reference",
            "dtype": "float32",
            "tokens_per_block": LIMITS.tokens_per_block,
            "target": {"model": str(FOLDER), "kv_blocks": LIMITS.kv_blocks},
            "draft": {"kind": "ngram", "ngram": {"min_match": 1}},
            "limits": {"max_seq_len": LIMITS.max_seq_len, "max_draft_len": LIMITS.max_draft_len, "max_requests": 2},
            "controller": {"kind": "fixed", "k": 4},
        }
    )
    manifest = Manifest.model_validate(
        {
            "version": 1,
            "role": "target",
            "engine": "embedded",
            "model": str(FOLDER),
            "source_sha256": "",
            "dtype": "float32",
            "vocab_size": tokenizer.vocab_size,
            "padded_vocab_size": config.vocab_size,
            "end_id": tokenizer.eos_id,
            "files": {},
            "limits": LIMITS,
            "capabilities": {
                "rules": PREFERENCE,
                "draft_options": OPTIONS,
                "options": OPTIONS,
                "generation_logits": "log_law",
                "log_probs": True,
                "drops_drafts": False,
                "deterministic": True,
            },
            "cost": {"context_tokens": 1, "seconds_by_tokens": {1: 0.03}},
            "built_with": {},
        }
    )
    model = EmbeddedStepModel(decoder, LIMITS, PREFERENCE)
    yield make_orchestrator(spec, tokenizer, model, manifest)
    model.close()


def hugging_face(reference: Any, tokenizer: Tokenizer, prompt: str, **options: Any) -> list[int]:
    """New tokens of greedy `generate`, without the end token."""
    ids = torch.tensor([tokenizer.encode(prompt)])
    with torch.inference_mode():
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, do_sample=False, **options
        )
    new: list[int] = out[0, ids.shape[1] :].tolist()
    return new[: new.index(tokenizer.eos_id)] if tokenizer.eos_id in new else new


def own(orchestrator: Orchestrator, prompt: str, k: int, **options: Any) -> list[int]:
    (chunk,) = orchestrator.generate(GenerationRequest(prompt, LENGTH, num_draft_tokens=k, **options))
    assert chunk.statistics is not None
    assert (chunk.statistics.num_draft_tokens > 0) == (k > 0)
    return list(chunk.token_ids)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("k", [0, 4])
def test_greedy_text_is_hugging_faces(reference: Any, orchestrator: Orchestrator, prompt: str, k: int) -> None:
    tokenizer = Tokenizer.load(FOLDER)
    assert own(orchestrator, prompt, k) == hugging_face(reference, tokenizer, prompt)


@pytest.mark.parametrize("k", [0, 4])
def test_options_mean_what_they_mean_there(reference: Any, orchestrator: Orchestrator, k: int) -> None:
    """repetition_penalty over prompt and answer, min_tokens, banned sequences: the processors of `generate`."""
    tokenizer = Tokenizer.load(FOLDER)
    prompt = PROMPTS[0]
    words = (" Paris", "France", " city of")
    plain = own(orchestrator, prompt, k)
    for ours, theirs in (
        ({"sampling": SamplingParams(repetition_penalty=1.3)}, {"repetition_penalty": 1.3}),
        (
            {"bad_words": words},
            {"bad_words_ids": [tokenizer.encode(w) for word in words for w in {word, " " + word.lstrip()}]},
        ),
        (
            {"embedding_bias": (("<|im_end|>", 30.0),), "min_tokens": 5},
            {"sequence_bias": {(tokenizer.eos_id,): 30.0}, "min_new_tokens": 5},
        ),
    ):
        found = own(orchestrator, prompt, k, **ours)
        assert found == hugging_face(reference, tokenizer, prompt, **theirs) != plain
