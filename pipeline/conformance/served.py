"""A deployment behind gRPC: whatever speaks the interface of the `spec_decode` model."""

from __future__ import annotations

import threading

from pipeline.client.triton_client import SpecDecodeClient
from pipeline.conformance.deployment import Answer, Deployment, Ids, TextCodec, join
from pipeline.engine.step import FloatArray
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams


class ServedDeployment(Deployment):
    """Asks a server; every thread has a connection of its own.

    Args:
        address: host:port of the gRPC endpoint.
        tokenizer: the target's, or None.
        timeout_s: longest silence of the server.
    """

    def __init__(self, address: str, tokenizer: TextCodec | None, timeout_s: float = 300.0) -> None:
        self.name = address
        self.tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._own = threading.local()
        self._clients: list[SpecDecodeClient] = []
        self._lock = threading.Lock()

    def ask(self, request: GenerationRequest) -> Answer:
        return join(self._client().generate(request))

    def next_scores(self, prefix: Ids, sampling: SamplingParams) -> FloatArray:
        return self._client().next_log_law(prefix, sampling)

    def close(self) -> None:
        for client in self._clients:
            client.close(cancel=True)

    def _client(self) -> SpecDecodeClient:
        client: SpecDecodeClient | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = SpecDecodeClient(self.name, self._timeout_s)
            with self._lock:
                self._clients.append(client)
        return client
