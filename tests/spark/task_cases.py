"""Options, rows and results for tests of one task's write to an embedded broker."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import ProducerPool, create_pool
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

TOPIC = "orders"
PLAN = ColumnPlan(value=0, key=1, fixed_topic=TOPIC)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={TOPIC: 2, "dead": 1}) as broker:
        yield broker


@pytest.fixture
def pool() -> Iterator[ProducerPool]:
    pool = create_pool()
    yield pool
    pool.close()


def options(broker: EmbeddedBroker, **overrides: str) -> SinkOptions:
    base_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": TOPIC}
    return parse_options(base_options | {name.replace("__", "."): value for name, value in overrides.items()})


def batch(start: int, rows: int = 100) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch({"value": [b"%d" % n for n in numbers], "key": [f"key-{n}" for n in numbers]})


def values(broker: EmbeddedBroker, topic: str = TOPIC) -> list[bytes]:
    found: list[bytes] = read_topic(broker.bootstrap_servers, topic).column("value").to_pylist()
    return found


def failed(broker: EmbeddedBroker, pool: ProducerPool, batches: list[pa.RecordBatch], **overrides: str) -> str:
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker, **overrides), PLAN, iter(batches), pool)
    assert len(pool) == 0, "a producer whose task failed is dropped"
    return str(error.value)
