"""`pykafka produce` against an embedded broker on the loopback interface."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark_kafka_sink.cli.input_rows import open_lines
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.errors import DataError
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

Output = pytest.CaptureFixture[str]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 2}) as broker:
        yield broker


def produce(broker: EmbeddedBroker, *arguments: str) -> int:
    return main(["produce", "--bootstrap-server", broker.bootstrap_servers, "t", *arguments])


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def written_rows(broker: EmbeddedBroker, *columns: str) -> list[tuple[Any, ...]]:
    rows = read_topic(broker.bootstrap_servers, "t").select(columns).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_writes_each_line_and_prints_count_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker
) -> None:
    set_stdin(monkeypatch, "a\nstraße\n\nno line end".encode())
    assert produce(broker) == 0
    assert written_rows(broker, "value") == sorted([(b"a",), ("straße".encode(),), (b"",), (b"no line end",)])
    captured = capsys.readouterr()
    assert captured.err.startswith("4 records in ")
    assert captured.out == ""
    set_stdin(monkeypatch, b"one line\n")
    assert produce(broker) == 0
    assert capsys.readouterr().err.startswith("1 record in ")


def test_writes_keys_headers_and_partition_of_flags(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker) -> None:
    set_stdin(monkeypatch, b"k=v=1\n=v2\n")
    arguments = ["--key-separator", "=", "--header", "a=1", "--header", "b=", "--partition", "1"]
    assert produce(broker, *arguments) == 0
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    rows = read_topic(broker.bootstrap_servers, "t").select(["partition", "key", "value", "headers"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, b"k", b"v=1", headers), (1, b"", b"v2", headers)]


def test_writes_columns_of_parquet_file(tmp_path: Path, broker: EmbeddedBroker) -> None:
    times = [datetime(2026, 1, 2, tzinfo=timezone.utc), datetime(2026, 1, 3, tzinfo=timezone.utc)]
    table = pa.table(
        {"value": pa.array([b"\xff", None], pa.binary()), "key": [1, 2], "timestamp": pa.array(times), "other": [0, 0]}
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert produce(broker, "--file", str(tmp_path / "rows.parquet")) == 0
    assert sorted(written_rows(broker, "key", "value", "timestamp")) == [
        (b"1", b"\xff", times[0]),
        (b"2", None, times[1]),
    ]


def test_writes_csv_fields_as_text(tmp_path: Path, broker: EmbeddedBroker) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,text,at\n007,"a ""b"", c",1767312000000\n8,,1767312000001\n9,"",1767312000002\n')
    arguments = ["--value-column", "text", "--key-column", "id", "--timestamp-column", "at"]
    assert produce(broker, "--file", str(path), *arguments) == 0
    rows = [(key, value, time.timestamp()) for key, value, time in written_rows(broker, "key", "value", "timestamp")]
    assert rows == [(b"007", b'a "b", c', 1767312000.0), (b"8", None, 1767312000.001), (b"9", b"", 1767312000.002)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--header", "nothing"], "--header must be NAME=VALUE"),
        (["--file", "/nowhere.csv"], "/nowhere.csv cannot be read"),
        (["--file", "/nowhere.parquet"], "/nowhere.parquet cannot be read"),
        (["--file", "/nowhere.txt"], "is not a .parquet, .csv or .tsv file"),
        (["--file", "rows.csv", "--key-separator", ":"], "Use --key-column instead"),
        (["-X", "acsk=1"], "acsk is not an option"),
        (["--partition", "7"], "topic t has no partition 7: it has 2, numbered from 0"),
        (["--partition", "-1"], "topic t has no partition -1: it has 2, numbered from 0"),
    ],
)
def test_prints_error_for_invalid_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker, arguments: list[str], message: str
) -> None:
    set_stdin(monkeypatch, b"")
    assert produce(broker, *arguments) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_names_missing_column_and_corrupt_file(tmp_path: Path, capsys: Output, broker: EmbeddedBroker) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert produce(broker, "--file", str(tmp_path / "rows.csv")) == 1
    assert "--value-column: " in (errors := capsys.readouterr().err)
    assert "has no column value. Its columns are a, b." in errors
    (tmp_path / "rows.parquet").write_bytes(b"PAR0 and so on")
    assert produce(broker, "--file", str(tmp_path / "rows.parquet")) == 1
    assert "is corrupt" in capsys.readouterr().err


def test_error_has_number_of_invalid_line() -> None:
    with pytest.raises(DataError, match="line 3 has no ':' between"):
        list(open_lines(io.BytesIO(b"a:1\nb:2\nc\n"), ":", [], 100))
    with pytest.raises(DataError, match=r"line 2 is longer than max.request.size, 5 bytes"):
        list(open_lines(io.BytesIO(b"a\n123456"), None, [], 5))


def test_rejected_record_ends_command_with_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker
) -> None:
    set_stdin(monkeypatch, b"x" * 2_000 + b"\n")
    assert produce(broker, "-X", "max.request.size=1000") == 1
    assert "pykafka: " in capsys.readouterr().err
    assert written_rows(broker, "value") == []


def test_draws_progress_bar_only_on_terminal(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    set_stdin(monkeypatch, b"a\n" * 1000)
    assert produce(broker) == 0
    assert "records" in terminal.getvalue()
    assert "\r" in terminal.getvalue()
