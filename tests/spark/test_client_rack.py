"""Tasks with clientRackEnv use their executor's rack, and warn if it is not set."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import ProducerPool
from spark_kafka_sink.spark.task_report import TaskReport
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.spark.task_cases import TOPIC, options
from tests.spark.task_cases import pool as pool

KEYLESS = ColumnPlan(value=0, fixed_topic=TOPIC)
VARIABLE = "TEST_ZONE"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={TOPIC: 6}, nodes=3, racks=["a", "b", "c"]) as broker:
        yield broker


def rack_options(broker: EmbeddedBroker, **overrides: str) -> SinkOptions:
    return options(broker, clientRackEnv=VARIABLE, kafka__partitioner__rack__aware="true", **overrides)


def write(sink_options: SinkOptions, pool: ProducerPool) -> TaskReport:
    batches = [pa.record_batch({"value": [b"v" * 1000] * 5_000})] * 2
    return write_rows(sink_options, KEYLESS, iter(batches), pool)


def find_leader_racks(broker: EmbeddedBroker, report: TaskReport) -> set[str | None]:
    leaders = [broker.cluster.partition(TOPIC, index).leader for index in report.written_ranges[TOPIC]]
    return {broker.cluster.nodes[leader].rack for leader in leaders if leader is not None}


def test_task_writes_rows_without_key_to_leaders_in_the_rack_of_its_executor(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for rack in ("a", "b"):
        monkeypatch.setenv(VARIABLE, rack)
        assert find_leader_racks(broker, write(rack_options(broker), pool)) == {rack}
    assert not [record for record in caplog.records if "clientRackEnv" in record.getMessage()]


@pytest.mark.parametrize("value", [None, "", "  "])
def test_task_without_rack_warns_once_and_writes_to_all_racks(
    broker: EmbeddedBroker,
    pool: ProducerPool,
    value: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    report = write(rack_options(broker, kafka__batch__size="16384"), pool)
    assert find_leader_racks(broker, report) == {"a", "b", "c"}
    (warning,) = [record.getMessage() for record in caplog.records if "clientRackEnv" in record.getMessage()]
    assert f"The environment variable {VARIABLE}, which clientRackEnv names, is not set on " in warning


def test_task_without_rows_does_not_warn(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    write_rows(rack_options(broker), KEYLESS, iter([]), pool)
    assert not caplog.records
