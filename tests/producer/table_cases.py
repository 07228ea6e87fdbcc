"""Fixtures for tests of send_table(): a broker per file, and a producer and a topic per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker


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
