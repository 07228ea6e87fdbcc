"""murmur2: equal to the Java client's for every key, at a cost that follows the bytes."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from spark_kafka_sink.producer import murmur2 as hashing
from spark_kafka_sink.producer.murmur2 import compute_partitions, murmur2
from spark_kafka_sink.records.byte_column import read_byte_column


def expected(key: bytes, count: int) -> int:
    return int((reference(key) & 0x7FFF_FFFF) % count)


def test_murmur2_equals_the_reference_for_random_keys_of_0_to_300_bytes() -> None:
    numbers = random.Random(1)
    keys = [numbers.randbytes(numbers.randrange(301)) for _ in range(20_000)]
    hashes = murmur2(read_byte_column(pa.array(keys)))
    assert hashes.tolist() == [reference(key) & 0xFFFF_FFFF for key in keys]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 1000))
def test_each_key_of_a_column_gets_the_reference_s_partition(keys: list[bytes], count: int) -> None:
    wanted = [expected(key, count) for key in keys]
    assert compute_partitions(read_byte_column(pa.array(keys, pa.binary())), count).tolist() == wanted


@pytest.mark.parametrize("shortest", [0, 3, 4, 8, 11])
@pytest.mark.parametrize("spread", [0, 1, 3, 30, 2_000])
def test_keys_of_one_length_or_of_many_have_the_reference_s_hash_wherever_they_begin(
    shortest: int, spread: int
) -> None:
    numbers = random.Random(shortest * 10_000 + spread)
    keys = [numbers.randbytes(shortest + numbers.randrange(spread + 1)) for _ in range(40)]
    wanted = [reference(key) & 0xFFFF_FFFF for key in keys]
    for skipped in range(5):
        for kind in (pa.binary(), pa.large_binary()):
            column = read_byte_column(pa.array(keys, kind).slice(skipped, 30))
            assert murmur2(column).tolist() == wanted[skipped : skipped + 30]


def test_keys_that_are_too_many_bytes_at_once_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_GATHERED_BYTES_MAX", 64)
    numbers = random.Random(9)
    keys = [numbers.randbytes(numbers.randrange(100)) for _ in range(50)]
    assert murmur2(read_byte_column(pa.array(keys))).tolist() == [reference(key) & 0xFFFF_FFFF for key in keys]


def test_known_values_of_the_java_client() -> None:
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    hashes = murmur2(read_byte_column(pa.array(list(known))))
    assert hashes.astype(np.int32).tolist() == list(known.values())


@pytest.mark.parametrize(
    "lengths",
    [[100_000, 1], [100_003], [9_000, 9_000, 9_000], [1_000] * 70 + [20_002] * 60 + [3], [300, 40_001] * 40 + [0, 7]],
)
def test_long_keys_among_short_ones_have_the_reference_s_hash(lengths: list[int]) -> None:
    numbers = random.Random(4)
    keys = [numbers.randbytes(length) for length in lengths]
    for skipped in (0, 1):
        assert murmur2(read_byte_column(pa.array([b"skipped"] * skipped + keys).slice(skipped))).tolist() == [
            reference(key) & 0xFFFF_FFFF for key in keys
        ]


@pytest.mark.parametrize("short", [[], [b"x"], [b"%d" % number for number in range(16_000)]])
def test_one_long_key_among_short_ones_costs_what_its_bytes_cost_and_not_a_step_of_all_keys_for_each_word(
    short: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    spread = hashing._spread

    def counted(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> None:
        steps.append(words.size)
        spread(words)

    monkeypatch.setattr(hashing, "_spread", counted)
    murmur2(read_byte_column(pa.array([b"k" * 100_000, *short])))
    assert len(steps) < 10  # of 25,000 words
    assert sum(steps) <= 25_000 + 2 * len(short)
