"""Rows for `pykafka bench`: JSON of a purchase, with keys of 1 to 7 digits, as an event stream has them."""

from __future__ import annotations

import random

import pyarrow as pa

from spark_kafka_sink.records.columns import RecordColumns

_PRODUCTS = ("anvil", "balloon", "compass", "doorbell", "easel", "fountain pen", "guitar", "hammock")
_KEYS = 10_000_000
_SEED = 17
"""A fixed seed gives the same rows in each run, so that two runs can be compared."""


def realistic_calls(calls: int, rows: int, value_bytes: int) -> list[RecordColumns]:
    """The columns of a number of calls; values of about `value_bytes`, a fifth more or less."""
    chance = random.Random(_SEED)
    return [_columns(chance, rows, value_bytes) for _ in range(calls)]


def _columns(chance: random.Random, rows: int, value_bytes: int) -> RecordColumns:
    keys = [str(int(chance.random() ** 3 * _KEYS)) for _ in range(rows)]
    values = [_value(chance, key, value_bytes) for key in keys]
    return RecordColumns(pa.array(values, pa.string()), pa.array(keys, pa.string()))


def _value(chance: random.Random, key: str, value_bytes: int) -> str:
    product, price = chance.choice(_PRODUCTS), chance.randrange(100, 100_000) / 100
    start = f'{{"user":{key},"product":"{product}","price":{price},"note":"'
    padding = int(value_bytes * chance.uniform(0.8, 1.2)) - len(start) - 2
    return f'{start}{chance.getrandbits(4 * max(1, padding)):x}"}}'
