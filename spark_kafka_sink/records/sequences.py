"""Sequence numbers count a producer's records in a partition, on a circle: 0 follows 2^31 - 1.

A batch carries the sequence of its first record. Of two sequences, the later one is that to which the shorter way round
the circle leads forwards. This is right as long as the two are less than 2^30 records apart.

    add(2**31 - 1, 1) == 0        last(5, records=3) == 7        follows(0, 2**31 - 1)        not follows(2**31 - 1, 0)
"""

from __future__ import annotations

MAX_SEQUENCE = 2**31 - 1
_HALF = 2**30


def increment(sequence: int, records: int) -> int:
    """The sequence that is `records` further on."""
    return (sequence + records) & MAX_SEQUENCE


def last_sequence(first: int, records: int) -> int:
    """The sequence of the last record of a batch that begins at `first`."""
    return (first + records - 1) & MAX_SEQUENCE


def is_after(later: int, earlier: int) -> bool:
    """Whether `later` comes after `earlier`; False if they are equal."""
    return 0 < ((later - earlier) & MAX_SEQUENCE) < _HALF
