"""Check for leaked threads and file descriptors. Threads and descriptors of earlier tests may end during the check."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def assert_no_leaks() -> Iterator[None]:
    """Fail if the `with` block leaves a new thread or file descriptor behind."""
    threads, descriptors = set(threading.enumerate()), list_descriptors()
    yield
    leaks = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    leaks += [
        f"descriptor {number}: {target}"
        for number, target in list_descriptors().items()
        if descriptors.get(number) != target
    ]
    if leaks:
        # No assert statement: if pytest collects this file, it adds its own lines to the message of an assertion.
        raise AssertionError(f"leaked threads or descriptors: {', '.join(leaks)}")


def list_descriptors() -> dict[int, str]:
    """Return the target of each open file descriptor of this process."""
    targets = {}
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed already
            targets[int(number)] = os.readlink(f"/dev/fd/{number}")
    return targets
