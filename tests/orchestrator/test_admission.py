"""Who may run: in order of arrival, never more than the pool holds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CancelledError, InvalidRequestError
from pipeline.orchestrator import admission as module
from pipeline.orchestrator.admission import Admission

from .scripted import eventually


def never() -> None:
    """Waits whatever happens."""


def unless(gone: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if gone():
            raise CancelledError("gone")

    return check


class Visitor:
    """A thread that is admitted, stays until it is told to leave, and notes what happened."""

    def __init__(self, admission: Admission, tokens: int, log: list[str], name: str, place: float = 0.0) -> None:
        self.leave, self.gone = threading.Event(), threading.Event()
        self._admission, self._tokens, self._log, self._name, self._place = admission, tokens, log, name, place
        self.thread = threading.Thread(target=self._run, daemon=True)
        waiting = admission.waiting + admission.running
        self.thread.start()
        eventually(lambda: admission.waiting + admission.running == waiting + 1)

    def _run(self) -> None:
        try:
            with self._admission.admit(self._tokens, unless(self.gone.is_set), self._place):
                self._log.append(self._name)
                self.leave.wait(10)
        except CancelledError:
            self._log.append(f"{self._name} cancelled")

    def finish(self) -> None:
        self.leave.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_first_come_first_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request does not overtake a large one that waits, though there is room for it; who is next is
    woken at once, and need not look."""
    monkeypatch.setattr(module, "POLL_S", 60.0)
    log: list[str] = []
    admission = Admission(pool_blocks=10, tokens_per_block=4, max_requests=8)
    a = Visitor(admission, 24, log, "a")
    b = Visitor(admission, 40, log, "b")
    c = Visitor(admission, 4, log, "c")
    eventually(lambda: log == ["a"])
    assert (admission.running, admission.waiting) == (1, 2)
    a.finish()
    eventually(lambda: log == ["a", "b"])
    assert (admission.running, admission.waiting) == (1, 1), "b fills the pool"
    b.finish()
    eventually(lambda: log == ["a", "b", "c"])
    c.finish()
    assert (admission.running, admission.waiting) == (0, 0)


def test_smaller_places_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits; what runs is left alone."""
    monkeypatch.setattr(module, "POLL_S", 60.0)
    log: list[str] = []
    admission = Admission(pool_blocks=1, tokens_per_block=4, max_requests=8)
    visitors = [Visitor(admission, 4, log, name, place) for name, place in (("a", 5), ("b", 20), ("c", 20), ("d", 10))]
    for index, name in enumerate("adbc"):
        eventually(lambda index=index, name=name: log[index:] == [name])
        next(visitor for visitor in visitors if visitor._name == name).finish()
    assert (admission.running, admission.waiting) == (0, 0)


def test_tickets_rise() -> None:
    """The arrival number that calls carry is the order of arrival."""
    admission = Admission(4, 4, 4)
    with admission.admit(1, never) as first, admission.admit(1, never) as second:
        assert first < second


def test_sizes_are_counted_in_whole_blocks() -> None:
    """Five tokens take two blocks of four; an exact fit of the pool is let in, one token more is refused."""
    admission = Admission(pool_blocks=4, tokens_per_block=4, max_requests=8)
    log: list[str] = []
    a, b = Visitor(admission, 5, log, "a"), Visitor(admission, 8, log, "b")
    eventually(lambda: admission.running == 2)
    c = Visitor(admission, 1, log, "c")
    assert admission.waiting == 1
    for visitor in (a, b, c):
        visitor.finish()
    with admission.admit(16, never):
        pass
    with pytest.raises(InvalidRequestError, match="max_tokens = '17 tokens with the prompt': the KV pool holds 16"):
        with admission.admit(17, never):
            pass
    assert (admission.running, admission.waiting) == (0, 0)


def test_max_requests() -> None:
    """Room in the pool is not enough."""
    log: list[str] = []
    admission = Admission(pool_blocks=100, tokens_per_block=4, max_requests=2)
    visitors = [Visitor(admission, 4, log, name) for name in "abc"]
    assert (admission.running, admission.waiting) == (2, 1)
    for visitor in visitors:
        visitor.finish()
    assert log[-1] == "c" and len(log) == 3


def test_who_is_cancelled_leaves_the_line() -> None:
    """The one at the head of the line does not block who stands behind."""
    log: list[str] = []
    admission = Admission(pool_blocks=10, tokens_per_block=4, max_requests=8)
    a = Visitor(admission, 24, log, "a")
    b = Visitor(admission, 40, log, "b")
    c = Visitor(admission, 16, log, "c")
    b.gone.set()
    eventually(lambda: log == ["a", "b cancelled", "c"])
    for visitor in (a, b, c):
        visitor.finish()
    assert (admission.running, admission.waiting) == (0, 0)


def test_a_busy_line_does_not_hide_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is woken by the others' comings and goings looks whether its client is still there, too."""
    monkeypatch.setattr(module, "POLL_S", 60.0)
    log: list[str] = []
    admission = Admission(pool_blocks=2, tokens_per_block=4, max_requests=8)
    a, b = Visitor(admission, 4, log, "a"), Visitor(admission, 4, log, "b")
    c = Visitor(admission, 8, log, "c")
    c.gone.set()
    a.finish()  # wakes c, which still has no room
    eventually(lambda: "c cancelled" in log)
    b.finish()


def test_an_error_gives_the_room_back() -> None:
    """Whatever ends the request, its blocks are free again."""
    admission = Admission(2, 4, 1)
    for _ in range(3):
        with contextlib.suppress(RuntimeError), admission.admit(8, never):
            raise RuntimeError
    assert admission.running == 0


@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    cancelled=st.sets(st.integers(0, 9)),
    max_requests=st.integers(1, 4),
)
def test_never_over_capacity(sizes: list[int], cancelled: set[int], max_requests: int) -> None:
    """However requests come, go and give up, those inside fit; and every other one gets in."""
    admission = Admission(pool_blocks=10, tokens_per_block=4, max_requests=max_requests)
    lock = threading.Lock()
    inside: dict[int, int] = {}
    worst = [0, 0]
    served: set[int] = set()

    def visit(name: int, tokens: int) -> None:
        with contextlib.suppress(CancelledError), admission.admit(tokens, unless(lambda: name in cancelled)):
            with lock:
                inside[name] = -(-tokens // 4)
                worst[:] = max(worst[0], sum(inside.values())), max(worst[1], len(inside))
                served.add(name)
            with lock:
                del inside[name]

    threads = [threading.Thread(target=visit, args=item, daemon=True) for item in enumerate(sizes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert worst[0] <= 10 and worst[1] <= max_requests
    assert served >= set(range(len(sizes))) - cancelled
    assert (admission.running, admission.waiting) == (0, 0)
    with admission.admit(40, never):
        assert admission.running == 1
