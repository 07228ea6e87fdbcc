"""Fixtures and helpers for tests of send_table(): a broker per file, and a producer and a topic per test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        yield producer


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.nodeid))}"
    broker.create_topic(name, 1)
    return name


def iterate_small_batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.record_batch({"value": [str(10 * number + row) for row in range(10)]})


def to_reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches)


def read_rows(broker: EmbeddedBroker, topic: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = read_topic(broker.bootstrap_servers, topic).select(columns).to_pylist()
    return [tuple(row.values()) for row in rows]
