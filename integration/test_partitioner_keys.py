"""The partitioner's hash equals kafka-python's for more keys than a unit test has time for."""

from __future__ import annotations

import os
import random

import pyarrow as pa
from kafka.partitioner.default import murmur2 as reference

from spark_kafka_sink.producer.murmur2 import murmur2
from spark_kafka_sink.records.byte_column import read_byte_column

KEYS = 1_000_000 if os.environ.get("SOAK") else 100_000
"""Number of keys. kafka-python hashes about 30,000 per second."""
CHUNK = 50_000


def test_murmur2_equals_kafka_pythons_for_random_keys_of_0_to_300_bytes() -> None:
    numbers = random.Random(20261121)
    for _ in range(KEYS // CHUNK):
        keys = [numbers.randbytes(numbers.randrange(301)) for _ in range(CHUNK)]
        hashes = murmur2(read_byte_column(pa.array(keys, pa.binary())))
        assert hashes.tolist() == [reference(key) & 0xFFFF_FFFF for key in keys]
