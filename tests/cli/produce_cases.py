"""`pykafka produce` with an embedded broker, and the rows that it has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_sink.cli.main import main
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 2}) as broker:
        yield broker


def produce(broker: EmbeddedBroker, *arguments: str) -> int:
    return main(["produce", "--bootstrap-server", broker.bootstrap_servers, "t", *arguments])


def read_written_rows(broker: EmbeddedBroker, *columns: str) -> list[tuple[Any, ...]]:
    rows = read_topic(broker.bootstrap_servers, "t").select(columns).to_pylist()
    return sorted(tuple(row.values()) for row in rows)
