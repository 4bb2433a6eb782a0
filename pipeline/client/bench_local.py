"""The in-process half of `specdec bench`: our plain decoding against transformers, and served against in-process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.client.bench_served import ServedBench
from pipeline.client.local import local_orchestrator
from pipeline.client.prompts import Prompt
from pipeline.engine.embedded import load_step_model
from pipeline.engine.step import StepRequest
from pipeline.orchestrator.request import GenerationRequest
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

WARM_UP = Prompt("warm-up", "Say hello to the world and count to ten.")
OVERHEAD_K = 3  # the same work in both: the controller would answer timing with other K


def plain_over_transformers(
    spec: DeploymentSpec, model_folder: Path, prompts: Sequence[Prompt], max_tokens: int, tick: Callable[[str], None]
) -> dict[str, list[float]]:
    """Tokens per second of our plain decoding over `generate` of transformers on the same weights, greedy.

    Interleaved prompt by prompt, who goes first alternates; prompt included, each prompt once. The system prompt of
    the chat template is in our prefix index after the first one.

    Args:
        model_folder: the Hugging Face folder that the target was built from.
        tick: told what runs.

    Returns:
        Ratios by the dtype that transformers computes in, one per prompt.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = Tokenizer.load(spec.engine_dir("target"))
    references: dict[str, Any] = {}
    for name, dtype in (("FP32", torch.float32), ("BF16", torch.bfloat16)):
        tick(f"loading transformers {name}")
        references[name] = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).eval()
    own = load_step_model(spec.engine_dir("target"), spec.target.threads)
    ratios: dict[str, list[float]] = {name: [] for name in references}
    try:
        for number, prompt in enumerate([WARM_UP, *prompts]):
            text = tokenizer.apply_chat_template(prompt.text)
            ids = tokenizer.encode(text, add_special_tokens=False)
            tick(f"plain decoding and transformers: {prompt.kind}")

            def run_own(ids: list[int] = ids) -> float:
                started = time.perf_counter()
                request = StepRequest(f"bench-{time.monotonic_ns()}", tuple(ids), max_tokens)
                count = len(own.submit(request).result().output_ids)
                return count / (time.perf_counter() - started)

            def run_reference(model: Any, ids: list[int] = ids) -> float:
                batch = torch.tensor([ids])
                started = time.perf_counter()
                with torch.inference_mode():
                    out = model.generate(
                        batch,
                        attention_mask=torch.ones_like(batch),
                        max_new_tokens=max_tokens,
                        min_new_tokens=max_tokens,
                        do_sample=False,
                    )
                return int(out.shape[1] - len(ids)) / (time.perf_counter() - started)

            if number == 0:  # threads, caches and lazy imports
                run_own()
                for model in references.values():
                    run_reference(model)
                continue
            own_speed = run_own() if number % 2 else 0.0
            speeds = {name: run_reference(model) for name, model in references.items()}
            own_speed = own_speed or run_own()
            for name, speed in speeds.items():
                ratios[name].append(own_speed / speed)
    finally:
        own.close()
    return ratios


def served_over_local(
    spec: DeploymentSpec, served: ServedBench, prompts: Sequence[Prompt], max_tokens: int, tick: Callable[[str], None]
) -> list[float]:
    """Tokens per second served over in process, speculative with the same fixed K, one ratio per prompt."""
    ratios = []
    tick("loading engines in this process")
    with local_orchestrator(spec) as orchestrator:

        def run_local(prompt: Prompt) -> float:
            request = GenerationRequest(
                prompt.text,
                max_tokens,
                stream=True,
                exclude_input_in_output=True,
                num_draft_tokens=OVERHEAD_K,
                chat=True,
            )
            started = time.perf_counter()
            count = sum(len(chunk.token_ids) for chunk in orchestrator.generate(request))
            return count / (time.perf_counter() - started)

        def run_served(prompt: Prompt) -> float:
            seconds, ids, _ = served.speculative(prompt, OVERHEAD_K)
            return len(ids) / seconds

        for number, prompt in enumerate(prompts):
            tick(f"served and in process: {prompt.kind}")
            # Once uncounted: both have the prompt in their caches.
            run_local(prompt)
            run_served(prompt)
            if number % 2 == 0:
                local, remote = run_local(prompt), run_served(prompt)
            else:
                remote, local = run_served(prompt), run_local(prompt)
            ratios.append(remote / local)
    return ratios
