"""Tests of murmur2: hashes equal to those of the Java client, in time proportional to the bytes of the keys."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference_murmur2

from spark_kafka_sink.producer import murmur2 as hashing
from spark_kafka_sink.producer.murmur2 import compute_partitions, murmur2
from spark_kafka_sink.records.byte_column import read_byte_column


def expected_partition(key: bytes, partition_count: int) -> int:
    return int((reference_murmur2(key) & 0x7FFF_FFFF) % partition_count)


def test_hashes_random_keys_like_reference() -> None:
    numbers = random.Random(1)
    keys = [numbers.randbytes(numbers.randrange(301)) for _ in range(20_000)]
    hashes = murmur2(read_byte_column(pa.array(keys)))
    assert hashes.tolist() == [reference_murmur2(key) & 0xFFFF_FFFF for key in keys]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 1000))
def test_computes_partition_of_each_key_like_reference(keys: list[bytes], partition_count: int) -> None:
    partitions = compute_partitions(read_byte_column(pa.array(keys, pa.binary())), partition_count)
    assert partitions.tolist() == [expected_partition(key, partition_count) for key in keys]


@pytest.mark.parametrize("min_length", [0, 3, 4, 8, 11])
@pytest.mark.parametrize("max_excess", [0, 1, 3, 30, 2_000])
def test_hashes_uniform_and_mixed_lengths_at_every_offset(min_length: int, max_excess: int) -> None:
    numbers = random.Random(min_length * 10_000 + max_excess)
    keys = [numbers.randbytes(min_length + numbers.randrange(max_excess + 1)) for _ in range(40)]
    expected_hashes = [reference_murmur2(key) & 0xFFFF_FFFF for key in keys]
    for skipped in range(5):
        for data_type in (pa.binary(), pa.large_binary()):
            column = read_byte_column(pa.array(keys, data_type).slice(skipped, 30))
            assert murmur2(column).tolist() == expected_hashes[skipped : skipped + 30]


def test_halves_columns_that_exceed_max_gathered_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_MAX_GATHERED_BYTES", 64)
    numbers = random.Random(9)
    keys = [numbers.randbytes(numbers.randrange(100)) for _ in range(50)]
    assert murmur2(read_byte_column(pa.array(keys))).tolist() == [reference_murmur2(key) & 0xFFFF_FFFF for key in keys]


def test_hashes_known_keys_like_java_client() -> None:
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    hashes = murmur2(read_byte_column(pa.array(list(known))))
    assert hashes.astype(np.int32).tolist() == list(known.values())


@pytest.mark.parametrize(
    "lengths",
    [[100_000, 1], [100_003], [9_000, 9_000, 9_000], [1_000] * 70 + [20_002] * 60 + [3], [300, 40_001] * 40 + [0, 7]],
)
def test_hashes_long_keys_among_short_keys(lengths: list[int]) -> None:
    numbers = random.Random(4)
    keys = [numbers.randbytes(length) for length in lengths]
    for skipped in (0, 1):
        assert murmur2(read_byte_column(pa.array([b"skipped"] * skipped + keys).slice(skipped))).tolist() == [
            reference_murmur2(key) & 0xFFFF_FFFF for key in keys
        ]


@pytest.mark.parametrize("short_keys", [[], [b"x"], [b"%d" % number for number in range(16_000)]])
def test_hashes_one_long_key_separately_from_short_keys(
    short_keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    word_counts: list[int] = []
    scramble = hashing._scramble

    def count_and_scramble(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> None:
        word_counts.append(words.size)
        scramble(words)

    monkeypatch.setattr(hashing, "_scramble", count_and_scramble)
    murmur2(read_byte_column(pa.array([b"k" * 100_000, *short_keys])))
    assert len(word_counts) < 10  # not one call for each of the 25,000 words
    assert sum(word_counts) <= 25_000 + 2 * len(short_keys)
