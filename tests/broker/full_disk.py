"""Simulation of a full disk by the kernel's limit on file sizes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_file_size(max_bytes: int) -> Iterator[None]:
    """Limit the size of all files that this process writes.

    As on a full disk, a write that exceeds the limit is partial, and the following ones raise OSError.
    """
    previous_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, previous_limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous_limits)
