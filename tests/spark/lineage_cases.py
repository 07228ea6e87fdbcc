"""Writes with OpenLineage settings, and a server that receives and validates their events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.constants import LINEAGE_DIRECTORY_OPTION
from spark_kafka_sink.spark.lineage import LineageWrite, flush_events, prepare_lineage
from spark_kafka_sink.spark.lineage_events import SparkWrite
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.patches import lineage_hooks
from tests.spark.lineage_server import LineageServer, lineage_server
from tests.spark.task_reports import sink_options

OPTIONS = {
    "kafka.bootstrap.servers": "SASL_SSL://one:9092, two:9092",
    "topic": "orders",
    "kafka.ssl.key.password": "key-password",
}
PARENT_ID, ROOT_ID, APP_ID = (f"0193a1f0-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))
PARENT = {"parentRunId": PARENT_ID, "parentJobNamespace": "airflow", "parentJobName": "dag.task"}
API_KEY = "top-secret-key"


@pytest.fixture(autouse=True)
def no_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own senders, which have logged no warning yet."""
    monkeypatch.setattr(lineage, "_senders", {})
    lineage_hooks._warn_about_missing_package.cache_clear()


@pytest.fixture
def server() -> Iterator[LineageServer]:
    with lineage_server() as server:
        yield server
        flush_events(60)
        assert server.violations == []


def create_spark_write(
    version: str = "4.3.0", *, is_stream: bool = False, uses_map_in_arrow: bool = False
) -> SparkWrite:
    return SparkWrite("Nightly Orders", version, (("value", "binary"),), is_stream, uses_map_in_arrow)


def build_http_confs(server: LineageServer, confs: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    return {"transport.type": "http", "transport.url": server.url, **confs}


def plan_lineage_write(
    server: LineageServer,
    confs: Mapping[str, str] = MappingProxyType({}),
    *,
    options: Mapping[str, str] = OPTIONS,
    is_stream: bool = False,
) -> LineageWrite:
    write = prepare_lineage(build_http_confs(server, confs), options, create_spark_write(is_stream=is_stream))
    assert write is not None
    return write


def create_report_options(write: LineageWrite) -> SinkOptions:
    return replace(sink_options(), lineage_directory=write.options()[LINEAGE_DIRECTORY_OPTION])


def collect_events(server: LineageServer) -> list[dict[str, Any]]:
    flush_events(60)
    return server.events
