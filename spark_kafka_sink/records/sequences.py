"""Arithmetic on sequence numbers, which wrap around from 2^31 - 1 to 0.

Sequence numbers count the records that an idempotent producer sends to a partition. The sequence number of a batch is
that of its first record. Since the numbers wrap around, `is_after` can compare two of them only if they are less than
2^30 apart.

    increment(2**31 - 1, 1) == 0
    compute_last_sequence(5, record_count=3) == 7
    is_after(0, 2**31 - 1)
    not is_after(2**31 - 1, 0)
"""

from __future__ import annotations

MAX_SEQUENCE = 2**31 - 1
"""The last sequence number before 0, as in the protocol. Its bits are all 1, so `&` computes the remainder."""
_HALF_RANGE = 2**30


def increment(sequence: int, record_count: int) -> int:
    """Return the sequence number that is `record_count` records after `sequence`."""
    return (sequence + record_count) & MAX_SEQUENCE


def compute_last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence number of a batch's last record."""
    return (base_sequence + record_count - 1) & MAX_SEQUENCE


def is_after(later: int, earlier: int) -> bool:
    """Return whether `later` comes strictly after `earlier`, less than 2^30 records later."""
    return 0 < ((later - earlier) & MAX_SEQUENCE) < _HALF_RANGE
