"""The examples of docs/monitoring.md run, and the page lists every metric."""

from __future__ import annotations

import io
import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_kafka_sink.exporters.opentelemetry import WriteInstruments
from spark_kafka_sink.exporters.prometheus import ProducerCollector, WriteCollector
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.testing import embedded_broker
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.reports.report_factories import make_report
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "monitoring.md").read_text()


def example(name: str, replaced: Mapping[str, str], names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the block after `<!-- name -->` with addresses and folders replaced. Return its global names."""
    code = TEXT.split(f"<!-- {name} -->", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    for pattern, other in replaced.items():
        assert pattern in code
        code = code.replace(pattern, other)
    found: dict[str, Any] = {} if names is None else names
    exec(compile(code, "docs/monitoring.md", "exec"), found)
    return found


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a fake Pushgateway, and the requests that it received."""
    pushed: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            pushed.append(self.path.encode() + b"\n" + self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", pushed
    server.shutdown()
    thread.join()
    server.server_close()


def test_batch_job_pushes_its_report(gateway: tuple[str, list[bytes]]) -> None:
    address, pushed = gateway
    example("push", {"gateway:9091": address})["push"](make_report())
    assert pushed[0].startswith(b"/metrics/job/nightly-orders\n")
    assert b'pykafka_rows_total{query="6d2a"} 1000.0' in pushed[0]


def test_prometheus_scrapes_producer() -> None:
    from prometheus_client import REGISTRY

    with embedded_broker(topics={"t": 1}) as broker:
        producer = example("producer", {"broker:9092": broker.bootstrap_servers})["producer"]
        producer.send(ProducerRecord("t", b"v")).result(WAIT_TIMEOUT_SECONDS)
        text = generate_latest(REGISTRY).decode()
        producer.close()
    collectors = [
        collector for collector in REGISTRY._collector_to_names if type(collector).__name__ == "ProducerCollector"
    ]
    for collector in collectors:
        REGISTRY.unregister(collector)
    assert 'kafka_producer_topic_record_send_total{client_id="' in text
    assert "kafka_producer_delivery_latency_seconds_bucket" in text


def test_opentelemetry_exports_report() -> None:
    out = io.StringIO()
    names = example("opentelemetry", {"ConsoleMetricExporter()": "ConsoleMetricExporter(out=OUT)"}, {"OUT": out})
    names["on_report"](make_report())
    names["provider"].shutdown()
    assert '"pykafka.rows"' in out.getvalue()


def test_documents_every_write_metric() -> None:
    registry, writes, reader = CollectorRegistry(), WriteCollector(), InMemoryMetricReader()
    registry.register(writes)
    writes.record(make_report())
    WriteInstruments(MeterProvider([reader])).record(make_report())
    scraped = set(re.findall(r"^# HELP (\S+)", generate_latest(registry).decode(), re.MULTILINE))
    data = reader.get_metrics_data()
    assert data is not None
    collected = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert [name for name in scraped | collected if f"`{name}`" not in TEXT] == []
    named = set(re.findall(r"`(pykafka[_.][a-z_.]+)`", TEXT))
    assert named - scraped - collected == set()


ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
FUNCTIONS = {"rate", "increase", "time", "histogram_quantile", "sum"}


def rules() -> list[dict[str, Any]]:
    groups = import_module("yaml").safe_load((ASSETS / "prometheus-rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((ASSETS / "grafana-dashboard.json").read_text()))


def expressions() -> list[str]:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    section = TEXT.split("\n## Set alerts\n")[1]
    on_the_page = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    named = re.findall(r"`(kafka_producer_[a-z_]+)`", section)
    return list(dict.fromkeys([*(rule["expr"] for rule in rules()), *expressions, *on_the_page, *named]))


def page() -> bytes:
    """Return the page that Prometheus scrapes, with the metrics of both collectors."""
    registry, writes = CollectorRegistry(), WriteCollector()
    writes.record(make_report())
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}))
    wait_for_result(producer, producer.send("t", b"v"))
    registry.register(writes)
    registry.register(ProducerCollector(producer))
    return generate_latest(registry)


def series_on_the_pages() -> dict[str, set[str]]:
    """Return the series in the page with their labels."""
    text = page().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.mark.parametrize("expression", expressions())
def test_alert_rules_and_dashboard_use_existing_series_and_labels(expression: str) -> None:
    series = series_on_the_pages()
    names = set(re.findall(r"[a-z][a-z_]*(?=[\[( )]|$)", re.sub(r"by \([^)]*\)|\[[^]]*\]", "", expression)))
    queried_names = {name for name in names if name.startswith(("pykafka_", "kafka_producer_"))}
    assert queried_names
    assert queried_names <= set(series)
    assert names - queried_names <= FUNCTIONS
    by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(",")}
    assert all(by <= series[name] for name in queried_names)
    assert expression.count("(") == expression.count(")")


def test_every_alert_describes_event_and_names_job_or_producer() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 5
    for rule in rules():
        label = "query" if "pykafka_" in rule["expr"] else "client_id"
        assert f"{{{{ $labels.{label} }}}}" in rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_dashboard_panels_do_not_overlap_and_name_their_series() -> None:
    panels = dashboard()["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
    legends = [target["legendFormat"] for panel in panels for target in panel["targets"]]
    assert all(legend.startswith(("{{query}}", "{{client_id}}")) for legend in legends)


@pytest.mark.needs("prometheus")
def test_promtool_accepts_metrics_page() -> None:
    subprocess.run(["promtool", "check", "metrics"], input=page(), check=True)


@pytest.mark.needs("prometheus")
def test_promtool_accepts_alert_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(ASSETS / "prometheus-rules.yml")], check=True)


@pytest.mark.needs("prometheus")
def test_alerts_fire_and_resolve_in_test_cases() -> None:
    cases = Path(__file__).parent / "exporters" / "prometheus_rules_test.yml"
    subprocess.run(["promtool", "test", "rules", str(cases)], check=True)
