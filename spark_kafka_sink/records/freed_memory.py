"""Tuning of glibc's malloc for the whole process, so that encoding reuses freed memory."""

from __future__ import annotations

import numpy as np


def reuse_freed_memory() -> None:
    """Make glibc keep up to 8 MB of freed memory for later allocations of this process.

    By default, glibc returns freed memory above 128 kB to the system. The columns of every chunk would then have to be
    mapped again page by page: 200 page faults for 10,000 records, with which encoding takes 1.5 times as long. glibc
    raises the limit to twice the size of the largest block freed so far, so allocating and freeing one block is enough.
    """
    np.empty(4 << 20, np.uint8)
