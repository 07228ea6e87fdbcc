"""A setting of glibc for the whole process: freed memory is kept for the next allocations."""

from __future__ import annotations

import numpy as np


def reuse_freed_memory() -> None:
    """Let glibc keep up to 8 MB of freed memory for the next allocations, from now on in this process.

    By default it gives everything above 128 kB back to the system, so that the columns of each chunk would be mapped
    page by page again: 200 page faults for 10,000 records, half as much again as encoding them costs. The limit becomes
    twice the size of the largest block that was ever freed, so one block is allocated and freed.
    """
    np.empty(4 << 20, np.uint8)
