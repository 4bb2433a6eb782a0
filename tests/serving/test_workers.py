"""Threads: bounded, reused, replaced where a job never returns."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.errors import OverloadedError
from pipeline.serving.workers import WorkerPool


def wait_until(condition: object, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.002)


def test_no_more_run_at_once_than_size() -> None:
    pool, lock, peak, running, done = WorkerPool("t", 3), threading.Lock(), [0], [0], threading.Semaphore(0)

    def job() -> None:
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        done.release()

    for _ in range(20):
        pool.submit(job)
    for _ in range(20):
        assert done.acquire(timeout=5)
    assert peak[0] == 3
    pool.close()


def test_limit_of_waiting_jobs_is_exact() -> None:
    pool, release = WorkerPool("t", 2, max_waiting=3), threading.Event()
    for _ in range(5):
        pool.submit(lambda: release.wait(5) and None)
    with pytest.raises(OverloadedError, match="2 requests run and 3 wait"):
        pool.submit(lambda: None)
    release.set()
    wait_until(lambda: pool._unfinished == 0)
    pool.submit(lambda: None)
    pool.close()


def test_written_off_jobs_are_replaced() -> None:
    pool, forever, done = WorkerPool("t", 1), threading.Event(), threading.Event()
    pool.submit(forever.wait)
    pool.submit(done.set)
    assert not done.wait(0.05)
    pool.write_off(1)
    pool.submit(lambda: None)  # the next job brings the new thread
    assert done.wait(5)
    forever.set()
    pool.close()


def test_close_gives_back_what_waits() -> None:
    pool, started, release, ran = WorkerPool("t", 1), threading.Event(), threading.Event(), []

    def first() -> None:
        started.set()
        release.wait(5)

    pool.submit(first)
    assert started.wait(5)
    pool.submit(lambda: ran.append(1))
    waiting = pool.close()
    assert len(waiting) == 1 and not ran
    with pytest.raises(OverloadedError, match="stopping"):
        pool.submit(lambda: None)
    release.set()


def test_a_raising_job_costs_no_thread() -> None:
    """As many raising jobs as threads, then a good one."""
    pool = WorkerPool("raising", 2)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("scripted")

    for _ in range(4):
        pool.submit(fail)
    pool.submit(done.set)
    assert done.wait(5)
    pool.close()


def test_smaller_places_go_first_and_withdrawn_jobs_not_at_all() -> None:
    pool, started, release, ran, done = WorkerPool("t", 1), threading.Event(), threading.Event(), [], threading.Event()

    def first() -> None:
        started.set()
        release.wait(5)

    pool.submit(first)
    assert started.wait(5)
    jobs = {}
    for name, place in (("c", 3.0), ("a", 1.0), ("gone", 0.0), ("b", 3.0 - 1.0), ("d", 3.0)):
        jobs[name] = lambda name=name: ran.append(name)
        pool.submit(jobs[name], place)
    pool.submit(done.set, 9.0)
    assert len(pool.queued()) == 6
    assert pool.withdraw(jobs["gone"]) and not pool.withdraw(jobs["gone"]) and not pool.withdraw(first)
    release.set()
    assert done.wait(5) and ran == ["a", "b", "c", "d"]
    wait_until(lambda: pool._unfinished == 0)
    pool.close()


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is refused and forgotten where nobody would take it; else a thread that is there takes it."""
    pool, done = WorkerPool("t", 2, max_waiting=0), threading.Event()

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(OverloadedError, match="no thread to be had"):
                pool.submit(done.set)
    release = threading.Event()
    pool.submit(lambda: release.wait(5) and None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        pool.submit(done.set)
    release.set()
    assert done.wait(5)
    pool.close()
