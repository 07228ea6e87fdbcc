"""Round trips of a driver and its task in a micro-batch, if nothing has changed since the previous one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.exactly_once import clients
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions, ExactlyOnceSettings
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer
from tests.simulated_cluster import SimulatedCluster

ROOT = Path(__file__).resolve().parents[3]
LATENCY_MS = 100.0
ROUND_TRIP_MS = 2 * LATENCY_MS
NAME = "start 1"
WARM_UP = 3


class CachedQuery:
    """A query whose driver keeps its client, and whose only task keeps its producer, from batch to batch."""

    def __init__(self, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.system = FakeSystem(latency_ms=LATENCY_MS)
        self.cluster = SimulatedCluster(self.system, nodes=2, topics={"t": 1}, transaction_version=version)
        options = ExactlyOnceOptions(log_topic="decisions", transaction_timeout_ms=60_000)
        self.settings = ExactlyOnceSettings(
            parse_client_config({"bootstrap.servers": self.cluster.bootstrap_servers}),
            "p",
            options,
            writer_kind=WriterKind.STREAM,
        )
        cached_clients: list[BlockingClient] = []

        def create_cached_client(config: ClientConfig, system: object) -> BlockingClient:
            if not cached_clients:
                cached_clients.append(create_client(config, system=self.system))
            return cached_clients[0]

        monkeypatch.setattr(clients, "create_client", create_cached_client)
        monkeypatch.setattr(BlockingClient, "close", lambda client: None)
        self.producer: KafkaProducer = create_simulated_producer(self.cluster, transactional_id="x")

    def begin(self) -> BatchStart:
        with Driver(self.settings, system=self.system) as driver:
            return driver.begin(NAME)

    def write(self, start: BatchStart) -> TransactionIdentity:
        report = TaskReport(TaskIdentity(0, 0, 1, 0, query_id="q", batch_id="0"))
        with ExactlyOnceWrite(self.settings, start, is_stream=True).transaction(self.producer, report):
            self.producer.send("t", b"v")
        assert report.transaction is not None
        return report.transaction

    def commit(self, start: BatchStart, number: int, prepared: TransactionIdentity) -> None:
        with Driver(self.settings, system=self.system) as driver:
            driver.commit(start, Batch("q", number), [prepared], BatchSummary.from_row_counts({"t": 1}, 1))

    def round_trips(self, step: Callable[[], object]) -> int:
        begun_ms = self.system.now()
        step()
        return round((self.system.now() - begun_ms) / ROUND_TRIP_MS)


@pytest.fixture
def query(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CachedQuery]:
    query = CachedQuery(request.param, monkeypatch)
    for number in range(WARM_UP):
        start = query.begin()
        query.commit(start, number, query.write(start))
    yield query
    query.producer.close(0)


WAITS = {2: (2, 4, 5), 1: (4, 5, 7)}
"""Numbers of round trips to begin, to write and to commit, by transaction version."""


@pytest.mark.parametrize(
    ("query", "begin", "write", "commit"), [(version, *waits) for version, waits in WAITS.items()], indirect=["query"]
)
def test_micro_batch_needs_minimal_round_trips(query: CachedQuery, begin: int, write: int, commit: int) -> None:
    """begin: describe, read; in version 1 also fence, read. write: describe, request the id, describe, send records.

    commit: decide (2) and describe concurrently; commit; record that the batch is done (2).
    """
    started: list[BatchStart] = []
    written: list[TransactionIdentity] = []
    assert query.round_trips(lambda: started.append(query.begin())) == begin
    assert query.round_trips(lambda: written.append(query.write(started[0]))) == write
    assert query.round_trips(lambda: query.commit(started[0], WARM_UP, written[0])) == commit


def test_design_page_lists_the_round_trips() -> None:
    page = (ROOT / "docs" / "exactly-once-design.md").read_text()
    rows = re.findall(r"^\| (planning|task|committing) \| (\d+) \|", page, re.MULTILINE)
    assert dict(rows) == dict(zip(("planning", "task", "committing"), map(str, WAITS[2]), strict=True))
    assert f"With version 1, it waits {sum(WAITS[1]) - sum(WAITS[2])} more times" in " ".join(page.split())
