"""NVIDIA's `tensorrt_llm` Triton model over the stand-in engine: its tensors, its manners, its errors.

`config_text` is a python-backend configuration with NVIDIA's tensors; `answer` is what the backend does with a request.
In a stub process the module is the model itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .nvidia_engine import Call, Dice, Engine, EngineError, Options, SeededDice

NUMPY = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "FP16": np.float16, "UINT64": np.uint64}
NUMPY |= {"BOOL": np.bool_, "UINT8": np.uint8, "STRING": np.object_}
_SCALARS = {
    "INT32": "input_lengths request_output_len num_return_sequences end_id pad_id beam_width runtime_top_k min_tokens "
    "runtime_top_p_reset_ids encoder_output_lengths decoder_input_lengths prompt_vocab_size",
    "FP32": "temperature runtime_top_p runtime_top_p_min runtime_top_p_decay len_penalty repetition_penalty "
    "presence_penalty frequency_penalty beam_search_diversity_rate draft_acceptance_threshold",
    "UINT64": "seed lora_task_id",
    "BOOL": "early_stopping return_log_probs return_context_logits return_generation_logits return_perf_metrics "
    "return_num_input_tokens return_num_output_tokens exclude_input_in_output stop streaming",
}
_ARRAYS = {
    "input_ids": ("INT32", (-1,)),
    "draft_input_ids": ("INT32", (-1,)),
    "draft_logits": ("FP32", (-1, -1)),
    "decoder_input_ids": ("INT32", (-1,)),
    "stop_words_list": ("INT32", (2, -1)),
    "bad_words_list": ("INT32", (2, -1)),
    "embedding_bias": ("FP32", (-1,)),
    "prompt_embedding_table": ("FP16", (-1, -1)),
    "prompt_table_extra_ids": ("UINT64", (-1,)),
    "lora_weights": ("FP16", (-1, -1)),
    "lora_config": ("INT32", (-1, 3)),
    "context_phase_params": ("UINT8", (-1,)),
    "retention_token_range_starts": ("INT32", (-1,)),
    "retention_token_range_ends": ("INT32", (-1,)),
    "retention_token_range_priorities": ("INT32", (-1,)),
    "retention_token_range_durations_ms": ("INT32", (-1,)),
    "guided_decoding_guide_type": ("STRING", (1,)),
    "guided_decoding_guide": ("STRING", (1,)),
    "encoder_input_features": ("FP16", (-1, -1)),
    "cross_attention_mask": ("BOOL", (-1, -1)),
    "skip_cross_attn_blocks": ("BOOL", (1,)),
    "mrope_rotary_cos_sin": ("FP32", (-1,)),
    "mrope_position_deltas": ("INT64", (1,)),
    **{f"retention_decode_{name}": ("INT32", (1,)) for name in ("priority", "duration_ms")},
    **{f"lookahead_{name}_size": ("INT32", (1,)) for name in ("window", "ngram", "verification_set")},
}
REQUIRED = ("input_ids", "input_lengths", "request_output_len")
OUTPUTS = {
    "output_ids": ("INT32", (-1, -1)),
    "sequence_length": ("INT32", (-1,)),
    "cum_log_probs": ("FP32", (-1,)),
    "output_log_probs": ("FP32", (-1, -1)),
    "context_logits": ("FP32", (-1, -1)),
    "generation_logits": ("FP32", (-1, -1, -1)),
    "batch_index": ("INT32", (1,)),
    "sequence_index": ("INT32", (1,)),
    "context_phase_params": ("UINT8", (-1,)),
    **{f"kv_cache_{name}_blocks": ("INT32", (1,)) for name in ("alloc_new", "reused", "alloc_total")},
    **{f"{name}_time_ns": ("INT64", (1,)) for name in ("arrival", "first_scheduled", "first_token", "last_token")},
    "acceptance_rate": ("FP32", (1,)),
    "total_accepted_draft_tokens": ("INT32", (1,)),
    "total_draft_tokens": ("INT32", (1,)),
    "num_input_tokens": ("INT32", (1,)),
    "num_output_tokens": ("INT32", (1,)),
}
HANGING_LENGTH = 41  # of an input that is never answered, unless the call is stopped
# The first input token asks for a failure.
FAULTS = {
    31: "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] Assertion failed: Can't allocate new "
    "blocks. No free blocks left. (/src/kvCacheManager.cpp:362)\n1  0x557282845de2 throwRuntimeError",
    32: "Logits type is not supported",
    33: "cannot create std::vector larger than max_size()\n1  0x7f26b1247c5e libtensorrt_llm.so(+0x847c5e)",
}


def inputs() -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """Name -> (type, dims, whether `reshape` takes the dimension away)."""
    scalars = {name: (kind, (1,), True) for kind, names in _SCALARS.items() for name in names.split()}
    return scalars | {name: (kind, dims, False) for name, (kind, dims) in _ARRAYS.items()}


def config_text(name: str, parameters: Mapping[str, str]) -> str:
    """A config.pbtxt for the python backend."""

    def tensor(name: str, kind: str, dims: tuple[int, ...], more: str = "") -> str:
        return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {", ".join(map(str, dims))} ] {more} }}'

    taken = [
        tensor(
            key,
            kind,
            dims,
            ("reshape: { shape: [ ] } " if scalar else "allow_ragged_batch: true ")
            + ("" if key in REQUIRED[1:] else "optional: true"),
        )
        for key, (kind, dims, scalar) in inputs().items()
    ]
    given = [tensor(key, kind, dims) for key, (kind, dims) in OUTPUTS.items()]
    extra = "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}'
        for key, value in parameters.items()
    )
    return (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 1\nmodel_transaction_policy {{ decoupled: false }}\n'
        f"instance_group [ {{ count: 1 kind: KIND_CPU }} ]\ninput [ {', '.join(taken)} ]\n"
        f"output [ {', '.join(given)} ]\n{extra}\n"
    )


def received(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What Triton lets through: known names, types, dims and a batch of 1; `reshape` applied.

    Raises:
        EngineError: in Triton's words.
    """
    known = inputs()
    arrived = {}
    for name, array in tensors.items():
        if name not in known:
            raise EngineError(f"unexpected inference input '{name}' for model 'target'")
        kind, dims, scalar = known[name]
        if array.dtype != NUMPY[kind]:
            raise EngineError(f"inference input '{name}' data-type is '{array.dtype}', but model expects 'TYPE_{kind}'")
        batch, *sizes = array.shape
        if batch != 1 or len(sizes) != len(dims) or any(d not in (-1, n) for d, n in zip(dims, sizes, strict=True)):
            raise EngineError(f"unexpected shape for input '{name}'")
        arrived[name] = array.reshape(1) if scalar else array
    if any(name not in arrived for name in REQUIRED):
        raise EngineError("expected inputs are missing")
    return arrived


def answer(
    engine: Engine,
    tensors: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    dice: Callable[[int], Dice] = SeededDice,
    wait: Callable[[], None] = lambda: None,
) -> dict[str, np.ndarray]:
    """One request of the backend.

    Args:
        engine: behind it.
        tensors: that arrived.
        outputs: that were asked for.
        dice: by seed.
        wait: called where the length asks to hang, until the request is stopped.

    Raises:
        EngineError: as INTERNAL.
    """

    def value(name: str) -> Any:
        return tensors[name].reshape(-1)[0].item() if name in tensors else None

    if value("stop"):
        return {}
    if value("streaming"):
        raise EngineError("Streaming is only supported if model is deployed using decoupled mode.")
    ids = tuple(tensors["input_ids"].reshape(-1).tolist())
    if ids[0] in FAULTS:
        raise EngineError(f"Executor failed process requestId 17 due to the following error: {FAULTS[ids[0]]}")
    if len(ids) == HANGING_LENGTH:
        wait()
    call = Call(
        input_ids=ids,
        max_new=value("request_output_len"),
        options=_options(tensors, value),
        draft_ids=tuple(tensors["draft_input_ids"].reshape(-1).tolist()) if "draft_input_ids" in tensors else (),
        draft_logits=tensors["draft_logits"][0] if "draft_logits" in tensors else None,
        end_id=value("end_id"),
    )
    for name in ("output_ids", "sequence_length"):
        if name not in outputs:
            raise EngineError(f"{name} tensor must be present in list of output tensors")
    try:
        found = engine.run(call, dice(value("seed") or 0))
    except EngineError as error:
        raise EngineError(f"Executor failed process requestId 17 due to the following error: {error}") from error
    new = found.output_ids if value("exclude_input_in_output") else (*ids, *found.output_ids)
    given = {"output_ids": np.array([[new]], np.int32).reshape(1, 1, -1)}
    given["sequence_length"] = np.array([[len(new)]], np.int32)
    if value("return_generation_logits"):
        given["generation_logits"] = found.logits[None, None].astype(np.float32)
    if value("return_perf_metrics"):
        # It counts tokens, and does not see the end token: one accepted draft too few where that was the correction.
        accepted = max(1, len(found.output_ids)) - 1 if found.drafted else 0
        counters = {"total_draft_tokens": found.drafted, "total_accepted_draft_tokens": accepted}
        counters |= {f"kv_cache_{name}_blocks": 1 for name in ("alloc_new", "reused", "alloc_total")}
        given |= {name: np.array([[number]], np.int32) for name, number in counters.items()}
        given["acceptance_rate"] = np.array([[accepted / (found.drafted or 1)]], np.float32)
    return {name: array for name, array in given.items() if name in outputs}


def _options(tensors: Mapping[str, np.ndarray], value: Callable[[str], Any]) -> Options:
    words: list[tuple[int, ...]] = []
    if "bad_words_list" in tensors:
        flat, ends = tensors["bad_words_list"][0].tolist()
        start = 0
        for end in ends:
            if end == -1:
                break
            words.append(tuple(flat[start:end]))
            start = end
    names = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
    return Options(
        top_k=value("runtime_top_k"),
        top_p=value("runtime_top_p"),
        bias=tensors["embedding_bias"][0] if "embedding_bias" in tensors else None,
        bad_words=tuple(words),
        **{name: value(name) for name in names},
    )


class TritonPythonModel:
    """The backend in a stub process: every request in a thread, one response each."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self._engine = Engine(**json.loads(parameters["engine"]["string_value"]))
        self._stopped: dict[str, threading.Event] = {}

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            threading.Thread(target=self._answer, args=(request, request.get_response_sender()), daemon=True).start()

    def _answer(self, request: Any, sender: Any) -> None:
        import triton_python_backend_utils as utils

        name = request.request_id()
        stopped = self._stopped.setdefault(name, threading.Event())
        try:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if "stop" in tensors:
                stopped.set()
            found = answer(self._engine, tensors, request.requested_output_names(), wait=stopped.wait)
            response = utils.InferenceResponse([utils.Tensor(key, array) for key, array in found.items()])
        except EngineError as error:
            response = utils.InferenceResponse(error=utils.TritonError(str(error)))
        sender.send(response, flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
