"""Rows for `pykafka bench`: purchases as JSON with keys of 1 to 7 digits, as in a real event stream."""

from __future__ import annotations

import random

import pyarrow as pa

from spark_kafka_sink.records.columns import RecordColumns

_PRODUCTS = ("anvil", "balloon", "compass", "doorbell", "easel", "fountain pen", "guitar", "hammock")
_DISTINCT_KEYS = 10_000_000
_SEED = 17
"""Seed of the random rows, fixed so that all runs write the same rows and their results can be compared."""


def build_call_columns(call_count: int, rows_per_call: int, value_bytes: int) -> list[RecordColumns]:
    """Build the columns for each call. Value sizes differ from `value_bytes` by up to 20%."""
    rng = random.Random(_SEED)
    return [_build_columns(rng, rows_per_call, value_bytes) for _ in range(call_count)]


def _build_columns(rng: random.Random, row_count: int, value_bytes: int) -> RecordColumns:
    # The cube makes small keys more frequent than large ones.
    keys = [str(int(rng.random() ** 3 * _DISTINCT_KEYS)) for _ in range(row_count)]
    values = [_build_value(rng, key, value_bytes) for key in keys]
    return RecordColumns(pa.array(values, pa.string()), pa.array(keys, pa.string()))


def _build_value(rng: random.Random, key: str, value_bytes: int) -> str:
    """Build a JSON value, padded to about `value_bytes` with random hexadecimal digits."""
    product, price = rng.choice(_PRODUCTS), rng.randrange(100, 100_000) / 100
    start = f'{{"user":{key},"product":"{product}","price":{price},"note":"'
    end = '"}'
    digit_count = max(1, int(value_bytes * rng.uniform(0.8, 1.2)) - len(start) - len(end))
    digits = f"{rng.getrandbits(4 * digit_count):x}"  # each hexadecimal digit holds 4 bits
    return start + digits + end
