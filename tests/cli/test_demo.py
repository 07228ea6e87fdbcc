"""`pykafka demo` before Spark starts: its requirements and its broker. integration/test_demo.py runs the rest."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spark_kafka_sink.cli.demo import require_spark, run_broker_process
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.errors import MissingDependencyError


@pytest.mark.parametrize(
    ("home", "message"), [("", "there is no java on the PATH"), ("/nowhere", "JAVA_HOME is /nowhere")]
)
def test_prints_remedy_without_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: str, message: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", home)
    assert main(["demo"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("pykafka: Spark requires Java 17 or newer, but ")
    assert message in output
    assert "set JAVA_HOME" in output
    assert len(output.splitlines()) == 1


def test_prints_remedy_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        require_spark()


def test_rejects_number_of_rows_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rows", "0"]) == 1
    assert "--rows must be at least 1, not 0" in capsys.readouterr().err


def test_run_broker_process_ends_with_the_demo() -> None:
    with run_broker_process() as address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
