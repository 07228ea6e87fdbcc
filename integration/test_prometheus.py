"""A Prometheus server scrapes a write's report and a producer, and evaluates the alert rules and the dashboard."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from integration.support.ports import PortBlock
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.exporters.prometheus import ProducerCollector, WriteCollector
from spark_kafka_sink.reports.write_report import COMMITTED, FAILED
from spark_kafka_sink.testing import embedded_broker
from tests.reports.report_factories import make_report
from tests.waiting import wait_until

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
SCRAPE_INTERVAL = "1s"

Query = Callable[[str], list[dict[str, Any]]]
"""Evaluates a PromQL expression. Returns the series of the result."""


@pytest.fixture
def writes() -> WriteCollector:
    return WriteCollector()


@pytest.fixture
def query(tmp_path: Path, writes: WriteCollector) -> Iterator[Query]:
    """Run a Prometheus server that scrapes the writes and a producer of this process."""
    registry = CollectorRegistry()
    registry.register(writes)
    exporter, exporter_thread = start_http_server(0, "127.0.0.1", registry)
    ports = PortBlock()
    port = next(ports.free_ports())
    configuration = {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": [str(ASSETS / "prometheus-rules.yml")],
        "scrape_configs": [
            {"job_name": "spark", "static_configs": [{"targets": [f"127.0.0.1:{exporter.server_port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]

    def evaluate(expression: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return result

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready"):
                return True
        except OSError:
            return False

    with (
        embedded_broker(topics={"t": 1}) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        registry.register(ProducerCollector(producer))
        producer.send("t", b"v").result()
        process = subprocess.Popen(command)
        try:
            wait_until(is_ready)
            yield evaluate
        finally:
            process.terminate()
            process.wait()
            exporter.shutdown()
            exporter_thread.join()
            exporter.server_close()
            ports.close()


@pytest.mark.needs("prometheus")
def test_scraped_series_keep_their_labels_and_feed_every_alert_and_panel(query: Query, writes: WriteCollector) -> None:
    for batch_id, status in enumerate((COMMITTED, FAILED)):
        writes.record(replace(make_report(batch_id), status=status, started_ms=round(1_000 * time.time())))
    wait_until(lambda: bool(query('ALERTS{alertname="PykafkaWriteFailed", alertstate="firing"}')))
    (alert,) = query('ALERTS{alertname="PykafkaWriteFailed"}')
    assert alert["metric"]["query"] == "6d2a"
    samples = query('{__name__=~"pykafka_.*|kafka_producer_.*"}')
    renamed = {label for sample in samples for label in sample["metric"] if label.startswith("exported_")}
    assert renamed == set()
    wait_until(lambda: bool(query("rate(pykafka_rows_total[1m])")))  # two scrapes
    panels = json.loads((ASSETS / "grafana-dashboard.json").read_text())["panels"]
    expressions = [target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]]
    assert [expression for expression in expressions if not query(expression)] == []
