"""A disk that is full: the kernel takes what still fits into a file and refuses the rest."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this size: writes are cut off there, later ones are OSErrors."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
