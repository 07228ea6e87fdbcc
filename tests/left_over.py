"""What ran has left no thread and no descriptor. What earlier tests have left may end meanwhile: that is no fault."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def nothing_is_left() -> Iterator[None]:
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    yield
    left = [f"thread {each.name}" for each in threading.enumerate() if each not in threads]
    left += [
        f"descriptor {number}: {what}" for number, what in open_descriptors().items() if descriptors.get(number) != what
    ]
    if left:
        # No assert statement: pytest would add its own lines to the message if it collects this file.
        raise AssertionError(f"a thread or a descriptor is left: {', '.join(left)}")


def open_descriptors() -> dict[int, str]:
    found = {}
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one that the list was read by
            found[int(number)] = os.readlink(f"/dev/fd/{number}")
    return found
