"""The law of served, sampled text on the demo pair, against the target's own laws."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline.client.triton_client import SpecDecodeClient
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.server import TritonServer
from pipeline.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.served, pytest.mark.demo]

PROMPT = "The best thing about the sea is"
SAMPLES = 480
WORKERS = 16
TOP_K = 2
LENGTH = 4  # token 1 is plain, a verify with K = 2 decides the others
# Chi-square with 15 degrees of freedom exceeds this with probability 1e-8 (false alarm, per rule).
CRITICAL = 69.0


def exact_law(client: SpecDecodeClient, prompt: tuple[int, ...], temperature: float) -> dict[tuple[int, ...], float]:
    """P of every text of LENGTH tokens, by teacher forcing the target."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for tokens, mass in law.items():
            step = np.exp(client.next_log_law((*prompt, *tokens), SamplingParams(temperature, TOP_K)))
            for token in np.flatnonzero(step > 0):
                longer[(*tokens, int(token))] = mass * float(step[token])
        law = longer
    return law


def chi_square(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Against the law; cells that expect fewer than 5 are joined."""
    total = sum(counts.values())
    big = {text: mass for text, mass in law.items() if mass * total >= 5}
    rest_mass, rest_count = 1 - sum(big.values()), total - sum(counts[text] for text in big)
    value = sum((counts[text] - total * mass) ** 2 / (total * mass) for text, mass in big.items())
    if rest_mass > 1e-9:
        value += (rest_count - total * rest_mass) ** 2 / (total * rest_mass)
    elif rest_count:
        return math.inf
    return value


@pytest.mark.parametrize("rule", ["block", "token", "match"])
def test_sampled_text_follows_the_law_of_the_target(demo_server: TritonServer, tokenizer: Tokenizer, rule: str) -> None:
    """480 served texts of 4 tokens (K = 2) against the exact law; a law at another temperature is told apart."""
    sampling = SamplingParams(temperature=1.2, top_k=TOP_K)
    prompt = tuple(tokenizer.encode(PROMPT))
    seeds, lock = itertools.count(1), threading.Lock()

    sums: Counter[str] = Counter()

    def worker(share: int) -> Counter[tuple[int, ...]]:
        counts: Counter[tuple[int, ...]] = Counter()
        with SpecDecodeClient(demo_server.grpc_address, timeout_s=120) as own:
            for _ in range(share):
                request = GenerationRequest(
                    PROMPT,
                    LENGTH,
                    sampling=sampling,
                    seed=next(seeds),
                    stream=True,
                    num_draft_tokens=2,
                    acceptance_rule=rule,
                )
                replies = list(own.generate(request))
                counts[tuple(token for reply in replies for token in reply.token_ids)] += 1
                statistics = replies[-1].statistics
                assert statistics is not None
                for name in ("num_draft_tokens", "num_accepted_draft_tokens", "draft_failures"):
                    with lock:
                        sums[name] += statistics[name]
        return counts

    with ThreadPoolExecutor(WORKERS) as pool:
        counts = sum(pool.map(worker, [SAMPLES // WORKERS] * WORKERS), Counter())
    with SpecDecodeClient(demo_server.grpc_address, timeout_s=120) as client:
        law = exact_law(client, prompt, 1.2)
        wrong = exact_law(client, prompt, 0.6)
    # Plain decoding would pass, too: drafts must really have been kept and rejected.
    assert 0 < sums["num_accepted_draft_tokens"] < sums["num_draft_tokens"]
    assert sums["num_draft_tokens"] >= SAMPLES and sums["draft_failures"] == 0
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-4)
    assert chi_square(counts, law) < CRITICAL
    assert chi_square(counts, wrong) > CRITICAL, "the test could not tell temperature 1.2 from 0.6"
