"""What crosses to NVIDIA's model and what comes back: shapes, missing outputs, refusals, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from pipeline.engine.step import StepRequest
from pipeline.engine.tensorrt_capabilities import MAX_TOP_K, TENSORRT_LLM_CAPABILITIES
from pipeline.errors import InvalidRequestError, OverloadedError, SpecDecodeError, StepError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.adapter import StepAdapter
from pipeline.serving.columns import NEVER, fit_columns, one_hot_logits
from pipeline.serving.contract import STEP
from pipeline.serving.dialect import OWN, Dialect

from .nvidia_deployment import DRAFT, END, TARGET, Direct, Setting, manifest, other, triton
from .nvidia_triton import FAULTS, OUTPUTS, config_text, inputs

WARM = SamplingParams(0.8)
DIALECT = Dialect.of(manifest("target", TARGET))


def send(request: StepRequest, dialect: Dialect = DIALECT, **changes: Any) -> Any:
    """The stand-in target's answer, by way of the adapter."""
    return Direct(triton(other(TARGET, **changes)), dialect).submit(request).result()


def sent(request: StepRequest, dialect: Dialect = DIALECT) -> dict[str, Any]:
    """What reaches Triton."""
    calls: list[Any] = []
    Direct(triton(TARGET, calls=calls), dialect).submit(request).result()
    fields: dict[str, Any] = calls[0]
    return fields


def test_the_contract_is_nvidias() -> None:
    """Every tensor that is not marked as ours is one of NVIDIA's, with its type, dimensions and reshape."""
    known = inputs()
    for spec in STEP.inputs:
        if not spec.own:
            assert known[spec.name] == (spec.kind, spec.dims, spec.scalar)
    for output in STEP.outputs:
        if not output.own:
            assert OUTPUTS[output.name] == (output.kind, output.dims)
    text_format.Parse(config_text("target", {"engine": "{}"}), model_config_pb2.ModelConfig())


def test_the_dialect_comes_from_the_manifest() -> None:
    assert Dialect.of(manifest("target", TARGET)) == Dialect(
        own_tensors=False,
        options=TENSORRT_LLM_CAPABILITIES.options,
        temperature_first=True,
        max_top_k=MAX_TOP_K,
        one_hot_logits=True,
        drops_drafts=True,
        raw_logits=True,
        vocab_size=5,
        width=8,
        max_seq_len=60,
    )
    assert Dialect.of(manifest("draft", DRAFT)).options == ("temperature",)
    unpadded = manifest("target", TARGET).model_copy(update={"engine_vocab_size": None})
    assert Dialect.of(unpadded).vocab_size == 8
    own = TENSORRT_LLM_CAPABILITIES.model_copy(
        update={
            "own_tensors": True,
            "options": OWN.options,
            "processors": "penalties_first",
            "max_top_k": None,
            "one_hot_logits": False,
            "drops_drafts": False,
            "generation_logits": "log_law",
        }
    )
    assert Dialect.of(manifest("target", TARGET).model_copy(update={"capabilities": own})) == OWN


def test_one_hot_laws_go_out_where_the_choice_is_drawn() -> None:
    request = StepRequest("r", (1,), 3, (2, 0), sampling=WARM, seed=3)
    (logits,) = (t.as_numpy() for t in sent(request)["inputs"] if t.name() == "draft_logits")
    assert logits.shape == (1, 2, 8) and logits.dtype == np.float32
    assert np.argwhere(logits[0] == 0.0).tolist() == [[0, 2], [1, 0]] and (logits.max(), logits.min()) == (0.0, NEVER)
    greedy = replace(request, sampling=SamplingParams())
    for quiet in (sent(greedy), sent(request, replace(DIALECT, one_hot_logits=False))):
        assert "draft_logits" not in [tensor.name() for tensor in quiet["inputs"]]


def test_draft_laws_get_the_targets_width() -> None:
    laws = np.arange(12, dtype=np.float32).reshape(2, 6)
    request = StepRequest("r", (1,), 3, (2, 0), laws, sampling=WARM)
    prepared = StepAdapter(DIALECT).prepare(request)
    assert prepared.draft_logits is not None and prepared.draft_logits.shape == (2, 8)
    assert (prepared.draft_logits[:, :5] == laws[:, :5]).all() and (prepared.draft_logits[:, 5:] == NEVER).all()


@given(
    columns=st.integers(1, 9),
    vocab=st.none() | st.integers(1, 9),
    width=st.none() | st.integers(1, 9),
    rows=st.integers(1, 3),
)
def test_columns(columns: int, vocab: int | None, width: int | None, rows: int) -> None:
    """Tokens keep their logits, everything else can never be drawn, and a fit is not copied."""
    logits = np.random.default_rng(columns).normal(size=(rows, columns)).astype(np.float32)
    fitted = fit_columns(logits, vocab, width)
    size = columns if width is None else width
    assert fitted.shape == (rows, size)
    tokens = min(columns, size, size if vocab is None else vocab)
    assert (fitted[:, :tokens] == logits[:, :tokens]).all() and (fitted[:, tokens:] == NEVER).all()
    assert (fitted is logits) == (tokens == columns == size)
    assert np.exp(fitted[:, tokens:] / 100.0).sum() == 0.0  # at the highest temperature, too


def test_one_hot_is_certain() -> None:
    logits = one_hot_logits((3, 0), 4)
    assert np.exp(logits - logits.max(1, keepdims=True)).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


def test_padding_of_raw_logits_is_impossible() -> None:
    """The stand-in gives 0 there, as a head's empty rows do: more than most tokens have."""
    dialect = Dialect.of(manifest("draft", DRAFT))
    found = Direct(triton(DRAFT), dialect).submit(StepRequest("r", (1,), 2, sampling=WARM, return_logits=True)).result()
    assert found.generation_logits is not None and found.generation_logits.shape == (2, 6)
    assert (found.generation_logits[:, 5] == NEVER).all() and (found.generation_logits[:, :5] > -20).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad: float) -> None:
    logits = np.zeros((1, 1, 1, 6), np.float32)
    logits[..., 2] = bad
    tensors = {"output_ids": np.array([[[1]]], np.int32), "generation_logits": logits}
    with pytest.raises(StepError, match="not finite"):
        StepAdapter(Dialect.of(manifest("draft", DRAFT))).decode(tensors, StepRequest("r", (1,), 1, return_logits=True))


def tensors(ids: tuple[int, ...], **others: int) -> dict[str, np.ndarray]:
    found = {"output_ids": np.array([[ids]], np.int32).reshape(1, 1, -1)}
    return found | {name: np.array([[value]], np.int32) for name, value in others.items()}


@pytest.mark.parametrize(
    ("output", "length"),
    [
        ((7, 8, 9), 3),
        ((7, 8, 9), 5),  # sequence_length counts the input, though it is left out
        ((1, 2, 7, 8, 9), 5),  # exclude_input_in_output was not heeded
        ((7, 8, 9, 6, 1), 3),  # padding behind the length
        ((7, 8, 9, END), 4),  # an end token after all
        ((7, 8, 9, END, 2), 5),
    ],
)
def test_new_tokens_alone(output: tuple[int, ...], length: int) -> None:
    request = StepRequest("r", (1, 2), 5 if END in output else 3, end_id=END)
    found = StepAdapter(DIALECT).decode(tensors(output, sequence_length=length), request)
    assert found.output_ids == (7, 8, 9)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"output_ids": np.zeros((1, 2, 1), np.int32)}, r"output_ids = shape \[1, 2, 1\]: must be \[1, 1, n\]"),
        (tensors((3, 4, 5, 6)), "output_ids = 4 tokens: request_output_len was 3"),
        (tensors((3,)), "sent no total_draft_tokens"),
        (tensors((3,), total_draft_tokens=3), "total_draft_tokens = 3: 2 drafts were sent"),
    ],
)
def test_answers_that_do_not_fit(found: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        StepAdapter(DIALECT).decode(found, StepRequest("r", (1, 2), 3, (3, 4)))


def test_counters_that_are_not_sent() -> None:
    """Block counts are nice to have; how many drafts were verified is not."""
    found = StepAdapter(DIALECT).decode(tensors((3,), total_draft_tokens=1), StepRequest("r", (1, 2), 3, (3, 4)))
    assert (found.total_draft_tokens, found.total_accepted_draft_tokens, found.kv.reused_blocks) == (1, 1, 0)


def test_accepted_is_counted_here() -> None:
    """Both drafts kept, the bonus was the end token: NVIDIA counts one."""
    request = StepRequest("r", (1,), 3, (3, 3), end_id=END)
    found = StepAdapter(DIALECT).decode(tensors((3, 3), total_draft_tokens=2, total_accepted_draft_tokens=1), request)
    assert found.total_accepted_draft_tokens == 2


@pytest.mark.parametrize(
    ("token", "kind", "code", "message"),
    [
        (31, OverloadedError, "UNAVAILABLE", "the engine's KV cache has no free block"),
        (32, StepError, "INTERNAL", "Logits type is not supported .*--logits_dtype float32"),
        (33, StepError, "INTERNAL", r"model target: .*larger than max_size\(\)$"),
    ],
)
def test_errors_say_what_to_do(token: int, kind: type[SpecDecodeError], code: str, message: str) -> None:
    """In one line, without the engine's stack."""
    with pytest.raises(kind, match=message) as caught:
        send(StepRequest("r", (token,), 1), replace(DIALECT, vocab_size=40))
    assert "\n" not in str(caught.value) and "0x" not in str(caught.value) and caught.value.code == code
    assert token in FAULTS


def test_prompt_beyond_the_engines_input() -> None:
    with pytest.raises(InvalidRequestError, match="input_ids = '9 tokens': the engine takes 8 input tokens"):
        send(StepRequest("r", (1,) * 9, 2), max_input_len=8)


def test_engines_of_another_width() -> None:
    drafts = StepRequest("r", (1,), 2, (2,), sampling=WARM)
    with pytest.raises(StepError, match=r"buffer sizes.*\(draft_logits have the width in manifest.json"):
        send(drafts, padded=9)
    with pytest.raises(StepError, match=r"bias.*\(embedding_bias has the width in manifest.json"):
        send(replace(drafts, sampling=SamplingParams(0.8, logit_bias=((0, 1.0),))), vocab=4)


def test_the_real_limit_of_drafts_is_learnt() -> None:
    """The refused call goes out again with fewer, under another id; the next one has no more than those."""
    calls: list[Any] = []
    model = Direct(triton(other(TARGET, max_draft_len=2), calls=calls), DIALECT)
    for name in ("a", "b"):
        found = model.submit(StepRequest(name, (1,), 5, (2, 0, 1, 3), sampling=WARM)).result()
        assert found.total_draft_tokens == 2
    assert [call["request_id"] for call in calls] == ["a", "a/shorter", "b"]
    lengths = [
        tensor.as_numpy().tolist()
        for call in calls
        for tensor in call["inputs"]
        if tensor.name() == "request_output_len"
    ]
    assert lengths == [[[5]], [[3]], [[3]]]


def test_a_draft_engine_that_knows_older_words() -> None:
    """Issue 473 of the Triton backend: an engine that was not built for drafts."""
    text = "Assertion failed: Number of draft tokens (3) is larger than maximum number of draft tokens (0) (/src/x:536)"
    shorter = StepAdapter(DIALECT).shorter(StepRequest("r", (1,), 4, (2, 0, 1)), StepError(text))
    assert shorter is not None and (shorter.draft_ids, shorter.draft_logits, shorter.max_new_tokens) == ((), None, 4)
    same = "Prompt length + number of draft tokens (3 + 4) exceeds maximum input length (5)."
    assert StepAdapter(DIALECT).shorter(StepRequest("r", (1,), 4, (2, 0, 1)), StepError(same)) is None


def test_a_text_with_tokens_the_draft_does_not_have() -> None:
    """An error of the draft: the round goes without it."""
    with pytest.raises(StepError, match="input_ids = 5: the engine has 5 tokens"):
        StepAdapter(DIALECT).prepare(StepRequest("r", (1, 5), 1))


def test_an_answer_that_would_be_cut_short_is_refused() -> None:
    """Beyond max_seq_len the engine gives fewer tokens, which would read as an end token."""
    fits = StepRequest("r", (1,) * 20, 40)
    with pytest.raises(InvalidRequestError, match=r"request_output_len = 41: input_ids \(20 tokens\) \+ .* exceed 60"):
        send(replace(fits, max_new_tokens=41))
    assert len(send(fits).output_ids) == 40  # without an end id all of them
    verify = StepRequest("r", (2,) * 45, 5, (2, 2, 2, 2), sampling=WARM)
    assert send(verify, max_input_len=47).total_draft_tokens == 2  # drafts beyond max_input_len are cut


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"sampling": SamplingParams(0.8, min_p=0.1)}, "min_p = 0.1: the target's engine cannot apply it"),
        (
            {"sampling": SamplingParams(0.8, repetition_penalty=1.5), "embedding_bias": (("a", 1.0),)},
            "repetition_penalty = 1.5: the engine applies it after the bias",
        ),
        ({"return_log_probs": True}, "return_log_probs = True: the target's engine gives no log-probabilities"),
        ({"acceptance_rule": "block"}, "acceptance_rule = 'block': this target offers auto, token"),
        ({"sampling": SamplingParams(0.8), "end_id": 8}, "end_id = 8"),
    ],
)
def test_requests_that_cannot_be_made_equal_are_refused(request_: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        list(Setting().orchestrator().generate(GenerationRequest("abc", 4, **request_)))
