"""Arithmetic of sequence numbers, which wrap around: 0 follows 2^31 - 1.

Sequence numbers count the records of a producer in a partition. A batch has the sequence number of its first record.
Since the numbers wrap around, two of them can be ordered only if they are less than 2^30 records apart.

    increment(2**31 - 1, 1) == 0
    compute_last_sequence(5, record_count=3) == 7
    is_after(0, 2**31 - 1)
    not is_after(2**31 - 1, 0)
"""

from __future__ import annotations

MAX_SEQUENCE = 2**31 - 1
_HALF_RANGE = 2**30


def increment(sequence: int, record_count: int) -> int:
    """Return the sequence number that follows `record_count` records from `sequence` on."""
    return (sequence + record_count) & MAX_SEQUENCE


def compute_last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence number of the last record of a batch."""
    return (base_sequence + record_count - 1) & MAX_SEQUENCE


def is_after(later: int, earlier: int) -> bool:
    """Return whether `later` comes after `earlier`. False if they are equal."""
    return 0 < ((later - earlier) & MAX_SEQUENCE) < _HALF_RANGE
