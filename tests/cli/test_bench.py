"""`pykafka bench`: its figures count only written records."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spark_kafka_sink.cli.bench import compute_quantile
from spark_kafka_sink.cli.bench_rows import build_call_columns
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

Output = pytest.CaptureFixture[str]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 2}) as broker:
        yield broker


def bench(broker: EmbeddedBroker, *arguments: str) -> int:
    return main(["bench", "--bootstrap-server", broker.bootstrap_servers, "t", *arguments])


def test_writes_requested_number_of_records(capsys: Output, broker: EmbeddedBroker) -> None:
    assert bench(broker, "--records", "2345", "--rows-per-call", "1000", "--json") == 0
    rows = read_topic(broker.bootstrap_servers, "t")
    figures = json.loads(capsys.readouterr().out)
    assert rows.num_rows == figures["records"] == 2345
    assert (figures["failed"], figures["calls"]) == (0, 3)
    read_bytes = sum(len(row["key"]) + len(row["value"]) for row in rows.select(["key", "value"]).to_pylist())
    assert figures["bytes_per_record"] == pytest.approx(read_bytes / 2345, rel=0.1)
    assert figures["megabytes_per_second"] == pytest.approx(
        figures["records_per_second"] * figures["bytes_per_record"] / 1e6
    )
    latencies = [figures[f"latency_{name}_ms"] for name in ("p50", "p95", "p99", "max")]
    assert latencies == sorted(latencies)
    assert latencies[-1] <= figures["seconds"] * 1000


def test_prints_readable_result_by_default(capsys: Output, broker: EmbeddedBroker) -> None:
    assert bench(broker, "--records", "10", "--rate", "1000") == 0
    out = capsys.readouterr().out
    assert out.startswith("10 records acknowledged in ")
    assert "p99" in out
    assert "At full speed" not in out


def test_does_not_count_failed_records(capsys: Output, broker: EmbeddedBroker) -> None:
    rule = broker.control.when(api=ApiKey.PRODUCE, topic="t", partition=0, times=None)
    rule.fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    assert bench(broker, "--records", "4000", "--rows-per-call", "1000", "--json") == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["failed"] > 0
    assert figures["records"] == read_topic(broker.bootstrap_servers, "t").num_rows == 4000 - figures["failed"]


def test_prints_error_when_all_records_fail(capsys: Output, broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    assert bench(broker, "--records", "10") == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--records", "0"], ["--rows-per-call", "0"], ["--rate", "0"], ["--value-bytes", "0"]]
)
def test_rejects_numbers_below_minimum(capsys: Output, broker: EmbeddedBroker, arguments: list[str]) -> None:
    assert bench(broker, *arguments) == 1
    assert f"pykafka: {arguments[0]} must be " in capsys.readouterr().err


def test_rows_are_reproducible_json_of_requested_size() -> None:
    (first,), (second,) = build_call_columns(1, 500, 120), build_call_columns(1, 500, 120)
    values = first.value.to_pylist()
    assert values == second.value.to_pylist()
    assert {*json.loads(values[0])} == {"user", "product", "price", "note"}
    lengths = [len(value) for value in values]
    assert 90 <= min(lengths) < max(lengths) <= 150
    assert len(set(first.key.to_pylist())) > 400  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("count", "quantile", "expected"),
    [(10, 0.5, 5), (10, 0.95, 10), (10, 0.99, 10), (10, 0.1, 1), (100, 0.07, 7)],  # 100 * 0.07 is above 7
)
def test_percentile_is_a_measured_value(count: int, quantile: float, expected: float) -> None:
    assert compute_quantile(list(range(1, count + 1)), quantile) == expected
