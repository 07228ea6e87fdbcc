"""Tuning of glibc's malloc, which affects the whole process."""

from __future__ import annotations

import numpy as np


def reuse_freed_memory() -> None:
    """Make glibc keep up to 8 MB of freed memory for later allocations of this process.

    By default glibc returns freed memory above 128 kB to the system. The columns of each chunk would be mapped again
    page by page, with 200 page faults for 10,000 records, which adds half to the cost of encoding them. glibc sets the
    limit to twice the size of the largest block that was freed, so this function allocates and frees one block.
    """
    np.empty(4 << 20, np.uint8)
