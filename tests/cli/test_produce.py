"""`pykafka produce` against an embedded broker on the loopback interface."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.cli.produce_cases import broker as broker
from tests.cli.produce_cases import produce, read_written_rows

Output = pytest.CaptureFixture[str]


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))


def test_writes_each_line_and_prints_count_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker
) -> None:
    set_stdin(monkeypatch, "a\nstraße\n\nno line end".encode())
    assert produce(broker) == 0
    assert read_written_rows(broker, "value") == sorted([(b"a",), ("straße".encode(),), (b"",), (b"no line end",)])
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--header", "nothing"], "--header must be NAME=VALUE"),
        (["--file", "/nowhere.csv"], "/nowhere.csv cannot be read"),
        (["--file", "/nowhere.parquet"], "/nowhere.parquet cannot be read"),
        (["--file", "/nowhere.txt"], "is not a .parquet, .csv or .tsv file"),
        (["--file", "rows.csv", "--key-separator", ":"], "Use --key-column instead"),
        (["--key-separator", ""], "--key-separator must not be empty"),
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


def test_rejected_record_ends_command_with_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker
) -> None:
    set_stdin(monkeypatch, b"x" * 2_000 + b"\n")
    assert produce(broker, "-X", "max.request.size=1000") == 1
    assert "pykafka: " in capsys.readouterr().err
    assert read_written_rows(broker, "value") == []


def test_lines_before_malformed_line_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker
) -> None:
    set_stdin(monkeypatch, b"a:1\nb:2:3\nbad\nc:4\n")
    assert produce(broker, "--key-separator", ":") == 1
    assert "pykafka: line 3 has no ':' between key and value" in capsys.readouterr().err
    assert read_written_rows(broker, "key", "value") == [(b"a", b"1"), (b"b", b"2:3")]


@pytest.mark.parametrize("last_line", [b"c:4\n", b"bad\n"])
def test_error_counts_rejected_line_from_1(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, broker: EmbeddedBroker, last_line: bytes
) -> None:
    set_stdin(monkeypatch, b"a:1\nb:" + b"x" * 2_000 + b"\n" + last_line)
    assert produce(broker, "-X", "max.request.size=1000", "--key-separator", ":") == 1
    assert "lines were not written. The first of them is line 2: " in capsys.readouterr().err
    assert (b"1",) in read_written_rows(broker, "value")


def test_error_counts_rejected_row_of_file_from_1(tmp_path: Path, capsys: Output, broker: EmbeddedBroker) -> None:
    (path := tmp_path / "rows.csv").write_text(f"value\na\n{'x' * 2_000}\n")
    assert produce(broker, "-X", "max.request.size=1000", "--file", str(path)) == 1
    assert "1 of 2 rows were not written. The first of them is row 2: " in capsys.readouterr().err


def test_draws_progress_bar_only_on_terminal(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    set_stdin(monkeypatch, b"a\n" * 1000)
    assert produce(broker) == 0
    assert "records" in terminal.getvalue()
    assert "\r" in terminal.getvalue()
