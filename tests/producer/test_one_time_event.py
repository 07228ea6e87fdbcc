"""OneTimeEvent: threads and signal handlers that wait for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from tests.waiting import WAIT_TIMEOUT_SECONDS


def run_with_interrupts(method: Callable[[], Any], handlers: Mapping[int, Callable[[], Any]]) -> int:
    """Call `method`, and run handlers between the instructions of OneTimeEvent, as Python runs signal handlers.

    `handlers`: the handlers by the number of the instruction before which they run, counted from 1.

    Return the number of instructions.
    """
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != sys.modules[OneTimeEvent.__module__].__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count in handlers:
                sys.settrace(None)
                handlers[count]()
                sys.settrace(trace)
        return trace

    usual_trace = sys.gettrace()
    sys.settrace(trace)
    try:
        method()
    finally:
        sys.settrace(usual_trace)
    return count


def wait(event: OneTimeEvent) -> None:
    event.wait(0)


WAIT_INSTRUCTIONS = range(1, run_with_interrupts(partial(wait, OneTimeEvent()), {}) + 1)
SET_INSTRUCTIONS = range(1, run_with_interrupts(OneTimeEvent().set, {}) + 1)


def test_waits_until_the_event_is_set() -> None:
    event = OneTimeEvent()
    assert not event.is_set()
    assert not event.wait(0)
    event.set()
    assert event.is_set()
    assert event.wait(0)
    assert event.wait(None)


def test_wakes_all_waiting_threads() -> None:
    event, results = OneTimeEvent(), list[bool]()
    threads = [threading.Thread(target=lambda: results.append(event.wait(None)), daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    event.set()
    event.set()
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
    assert results == [True] * 5


def test_handler_can_wait_at_each_instruction_of_set() -> None:
    for instruction in SET_INSTRUCTIONS:
        event = OneTimeEvent()
        run_with_interrupts(event.set, {instruction: partial(event.wait, 0)})
        assert event.wait(None)


def test_handler_can_wait_at_each_instruction_of_wait() -> None:
    for instruction in WAIT_INSTRUCTIONS:
        event = OneTimeEvent()
        results: list[bool] = []
        run_with_interrupts(partial(wait, event), {instruction: lambda: results.append(event.wait(0))})  # noqa: B023
        assert results == [False]


def test_handler_can_wait_at_each_instruction_of_a_wait_during_which_the_event_is_set() -> None:
    for set_at in WAIT_INSTRUCTIONS:
        for wait_at in range(set_at + 1, WAIT_INSTRUCTIONS.stop):
            event = OneTimeEvent()
            run_with_interrupts(partial(wait, event), {set_at: event.set, wait_at: partial(event.wait, None)})
            assert event.wait(None)


def test_other_threads_still_wait_after_a_wait_was_interrupted_or_timed_out() -> None:
    def raise_interrupt() -> None:
        raise KeyboardInterrupt

    for instruction in [0, *WAIT_INSTRUCTIONS]:  # with 0, nothing is raised
        event = OneTimeEvent()
        with suppress(KeyboardInterrupt):
            run_with_interrupts(partial(wait, event), {instruction: raise_interrupt})
        assert event._lock.locked()
        event.set()
        assert event.wait(None)
