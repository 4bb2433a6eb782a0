"""What the models of a server take from /dev/shm: where they begin, and what they grow to under load."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.spec import DeploymentSpec

LOGIT_BYTES = 4
HOW = (
    "enlarge it (Docker: --shm-size, compose: shm_size, Kubernetes: a memory volume on /dev/shm), remove what lies "
    "there, or lower limits.max_requests or limits.max_draft_len; with draft.sampling: greedy embedded engines send "
    "no laws"
)


@dataclass(frozen=True)
class LawTraffic:
    """The laws of drafts that lie in shared memory when all requests sample at once.

    A region grows to what was under way in it at once, and never shrinks: 32 calls with 1.5 MiB of laws each were
    measured to make one of 50 MiB.

    Attributes:
        copies: how often the laws of a round lie there: leaving the draft, entering the target.
        requests: that run at once.
        rows: K at most; one more where drafts are made ahead.
        vocab: width of a law.
    """

    copies: int = 0
    requests: int = 0
    rows: int = 0
    vocab: int = 0

    @classmethod
    def of(cls, spec: DeploymentSpec, vocab: int) -> LawTraffic:
        if spec.draft.uses_model and spec.draft.sampling == "q":
            # A request whose draft goes ahead may have two calls of it under way.
            copies = 1 + spec.draft_calls
        else:
            # A TensorRT target is sent rows that are certain of one token: without them it would redraw after a
            # mismatch.
            copies = 1 if spec.draft.kind != "none" and spec.engine == "tensorrt_llm" else 0
        return cls(copies, spec.limits.max_requests, spec.limits.max_draft_len + (spec.draft_calls > 1), vocab)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.copies * self.requests * self.rows * self.vocab * LOGIT_BYTES

    def __str__(self) -> str:
        return (
            f"{self.copies} x {self.requests} requests x {self.rows} laws x {self.vocab} x {LOGIT_BYTES} bytes = "
            f"{self.size / 2**20:.0f} MiB"
        )
