"""The deployment-wide switch on the real server: requests follow its file, without a reload."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.switch import AUTO, LOOK_S, OFF, SWITCH_NAME, Setting, write_setting
from pipeline.spec import DeploymentSpec

pytestmark = [pytest.mark.served, pytest.mark.demo]


@pytest.fixture(autouse=True)
def restored(demo_spec: DeploymentSpec) -> Iterator[None]:
    """The server is shared by other tests."""
    yield
    (demo_spec.engines_dir / SWITCH_NAME).unlink(missing_ok=True)


def answer(client: SpecDecodeClient, demo_spec: DeploymentSpec, setting: Setting) -> tuple[str, Reply]:
    write_setting(demo_spec.engines_dir / SWITCH_NAME, setting)
    asked = time.monotonic()
    while True:  # the server looks at the file every LOOK_S; a request in between shows the old setting
        request = GenerationRequest("Count from one to twenty.", 24, stream=True, chat=True)
        replies = list(client.generate(request))
        text = "".join(reply.text for reply in replies)
        if time.monotonic() > asked + 2 * LOOK_S:
            return text, replies[-1]


def test_requests_follow_the_switch(client: SpecDecodeClient, demo_spec: DeploymentSpec) -> None:
    """Off: no draft and a reason in every round; K: that K; auto: the controller again. One text."""
    texts = []
    for setting in (OFF, 2, AUTO):
        for _ in range(2):  # the second one began after a look
            text, last = answer(client, demo_spec, setting)
        texts.append(text)
        statistics = last.statistics
        assert statistics is not None
        decisions = set(statistics["decisions"]) - {"first_token", "last_token"}
        if setting == OFF:
            assert decisions == {"switched_off"} and statistics["num_draft_tokens"] == 0
            assert statistics["plain_decisions"] == statistics["decisions"]
        elif setting == 2:
            assert decisions <= {"switched", "no_offer"} and statistics["num_draft_tokens"] > 0
        else:
            assert not decisions & {"switched_off", "switched"}
    assert texts[0][:20] == texts[1][:20] == texts[2][:20]
