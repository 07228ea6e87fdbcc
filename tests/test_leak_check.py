"""`assert_no_leaks` reports leaked threads and descriptors, and ignores those that end during the check."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from tests.leak_check import assert_no_leaks


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def open_descriptor(stack: contextlib.ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    return descriptor


def start_thread(stack: contextlib.ExitStack) -> tuple[threading.Thread, threading.Event]:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="leaked")
    thread.start()
    stack.callback(thread.join)
    stack.callback(may_end.set)
    return thread, may_end


def test_reports_leaked_descriptor(stack: contextlib.ExitStack) -> None:
    with (
        pytest.raises(AssertionError, match=r"leaked threads or descriptors: descriptor [0-9]+: /dev/null$"),
        assert_no_leaks(),
    ):
        open_descriptor(stack)


def test_reports_leaked_thread(stack: contextlib.ExitStack) -> None:
    with pytest.raises(AssertionError, match="leaked threads or descriptors: thread leaked"), assert_no_leaks():
        start_thread(stack)


def test_ignores_end_of_existing_thread_and_descriptor() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        thread, may_end = start_thread(stack)
        with assert_no_leaks():
            os.close(descriptor)
            may_end.set()
            thread.join()
