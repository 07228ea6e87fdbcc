"""A caller that waits for answers, and sends nothing meanwhile: nothing lingers as long as it waits."""

from __future__ import annotations

import pytest

from tests.producer.batching.accumulator_harness import Harness


def test_while_a_caller_waits_for_answers_nothing_lingers_and_afterwards_rows_do_again() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    assert h.ready_nodes() == set()
    before = h.wakeups
    with h.accumulator.without_linger():
        assert h.wakeups == before + 1  # the sender would sleep until the linger is over
        assert h.ready_nodes() == {0}
        for batch in h.drain():
            h.acknowledge(batch)
    h.append(2)
    assert h.ready_nodes() == set()


def test_a_wait_for_answers_that_fails_is_over() -> None:
    h = Harness(linger_ms=1000)
    with pytest.raises(KeyboardInterrupt), h.accumulator.without_linger():
        raise KeyboardInterrupt
    h.append(0)
    assert h.ready_nodes() == set()
