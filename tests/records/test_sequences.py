"""Arithmetic of sequence numbers, which wrap around from 2^31 - 1 to 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records.sequences import MAX_SEQUENCE, compute_last_sequence, increment, is_after

SEQUENCES = st.integers(0, MAX_SEQUENCE)


@pytest.mark.parametrize(
    ("earlier", "later"), [(0, 1), (MAX_SEQUENCE, 0), (MAX_SEQUENCE - 4, 7), (5, 5 + 2**30 - 1), (2**30 + 1, 0)]
)
def test_is_after_orders_sequences_across_wrap(earlier: int, later: int) -> None:
    assert (is_after(later, earlier), is_after(earlier, later)) == (True, False)


@pytest.mark.parametrize("sequence", [0, 5, MAX_SEQUENCE])
def test_sequence_is_not_after_itself(sequence: int) -> None:
    assert not is_after(sequence, sequence)


@pytest.mark.parametrize(
    ("first", "records", "last", "following"),
    [
        (0, 1, 0, 1),
        (5, 3, 7, 8),
        (MAX_SEQUENCE, 1, MAX_SEQUENCE, 0),
        (MAX_SEQUENCE, 2, 0, 1),
        (MAX_SEQUENCE - 1, 4, 1, 2),
    ],
)
def test_last_and_next_sequence_wrap_around(first: int, records: int, last: int, following: int) -> None:
    assert (compute_last_sequence(first, records), increment(first, records)) == (last, following)


@given(first=SEQUENCES, records=st.integers(0, MAX_SEQUENCE))
def test_increment_adds_modulo_sequence_range(first: int, records: int) -> None:
    assert (increment(first, records) - first) % (MAX_SEQUENCE + 1) == records
    assert 0 <= increment(first, records) <= MAX_SEQUENCE
