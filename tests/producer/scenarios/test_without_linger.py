"""without_linger: no row lingers while a caller waits for acknowledgements."""

from __future__ import annotations

import contextlib
import itertools
import sys
from types import FrameType
from typing import Any

import pytest

from tests.producer.batching.accumulator_harness import Harness


def test_without_linger_suspends_linger_until_the_block_ends() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    assert h.ready_nodes() == set()
    before = h.wakeups
    with h.accumulator.without_linger():
        assert h.wakeups == before + 1  # otherwise the sender would sleep until linger.ms is over
        assert h.ready_nodes() == {0}
        for batch in h.drain():
            h.acknowledge(batch)
    h.append(2)
    assert h.ready_nodes() == set()


def test_without_linger_ends_when_the_block_raises() -> None:
    h = Harness(linger_ms=1000)
    with pytest.raises(KeyboardInterrupt), h.accumulator.without_linger():
        raise KeyboardInterrupt
    h.append(0)
    assert h.ready_nodes() == set()


@pytest.mark.parametrize("line", range(8))
def test_without_linger_ends_after_interrupt_at_any_line(line: int) -> None:
    h = Harness(linger_ms=1000)
    lines = itertools.count()

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "without_linger" and event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt), h.accumulator.without_linger():
            pass
    finally:
        sys.settrace(before)
    assert next(lines) > min(line, 5)
    assert h.accumulator._lock.acquire(blocking=False), "the interrupt came while the lock was held"
    h.accumulator._lock.release()
    h.append(0)
    assert h.ready_nodes() == set()
