"""`specdec conformance` on the served demo: the parts that are cheap; the law has a test of its own here."""

from __future__ import annotations

import pytest

from pipeline.conformance.check import FAILED, PASSED
from pipeline.conformance.coupled import CoupledCheck
from pipeline.conformance.greedy import GreedyCheck
from pipeline.conformance.log_probs import LogProbCheck
from pipeline.conformance.run import question
from pipeline.conformance.seeds import SeedCheck
from pipeline.conformance.served import ServedDeployment
from pipeline.conformance.stopping import StoppingCheck
from pipeline.serving.server import TritonServer
from pipeline.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.served, pytest.mark.demo]


def test_the_served_demo_conforms(demo_server: TritonServer, tokenizer: Tokenizer) -> None:
    """Nothing fails, nothing is refused, and every index of a block has had its end."""
    checks = [GreedyCheck(), CoupledCheck(), SeedCheck(), LogProbCheck(), StoppingCheck()]
    deployment = ServedDeployment(demo_server.grpc_address, tokenizer)
    try:
        facts, found = question(deployment, checks, quick=True)
    finally:
        deployment.close()
    assert facts.refused == {}
    assert {f"{f.part}: {f.name}": f.detail for f in found if f.status == FAILED} == {}
    assert {f.part for f in found if f.status == PASSED} == {check.part for check in checks}
    for finding in (f for f in found if f.part == StoppingCheck.part):
        assert finding.figures["inside"] == [0, 1, 2, 3, 4], finding.detail
