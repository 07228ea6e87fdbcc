"""A thread or descriptor that is left is named; one that was there and has gone is no fault."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from tests.left_over import nothing_is_left


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def opened(stack: contextlib.ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    return descriptor


def started(stack: contextlib.ExitStack) -> tuple[threading.Thread, threading.Event]:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="left-over")
    thread.start()
    stack.callback(thread.join)
    stack.callback(may_end.set)
    return thread, may_end


def test_a_descriptor_that_is_left_is_named(stack: contextlib.ExitStack) -> None:
    with pytest.raises(AssertionError, match=r"is left: descriptor [0-9]+: /dev/null$"), nothing_is_left():
        opened(stack)


def test_a_thread_that_is_left_is_named(stack: contextlib.ExitStack) -> None:
    with pytest.raises(AssertionError, match="is left: thread left-over"), nothing_is_left():
        started(stack)


def test_what_was_there_before_may_end_meanwhile() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        thread, may_end = started(stack)
        with nothing_is_left():
            os.close(descriptor)
            may_end.set()
            thread.join()
