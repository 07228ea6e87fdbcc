"""docs/metrics.md lists exactly the producer's metrics."""

from __future__ import annotations

import re
from pathlib import Path

from spark_kafka_sink.producer.record import ProducerRecord
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.simulated_cluster import SimulatedCluster

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"


NODES = ["node--1", "node-0"]


def documented() -> set[str]:
    """Return all documented names: `x-rate/total{topic=...}` stands for x-rate{topic=t} and x-total{topic=t}."""
    table = DOCUMENT.read_text().split("|---|---|")[1]
    names = set()
    for stem, endings, tag in re.findall(r"`([a-z-]+)-([a-z]+(?:/[a-z]+)*)(\{(?:topic|node-id)=...\})?`", table):
        tags = [tag.replace("...", value) for value in (NODES if "node-id" in tag else ["t"])]
        names |= {f"{stem}-{ending}{tag}" for ending in endings.split("/") for tag in tags}
    return names


def test_documented_metrics_match_code() -> None:
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}))
    wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    assert documented() == set(producer.metrics())
