"""`pykafka verifiable-producer`, which is started, read and stopped as in Kafka's system tests."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.cli.main import EXIT_FAILED, main
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.documents import blocks

Event = dict[str, Any]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 2}) as broker:
        yield broker


@pytest.fixture
def options_file(tmp_path: Path) -> Path:
    """The file that kafkatest's service VerifiableProducer writes."""
    file = tmp_path / "producer.properties"
    file.write_text("request.timeout.ms=30000\n\nsecurity.protocol=PLAINTEXT\n")
    return file


def arguments(broker: EmbeddedBroker, options_file: Path, *overrides: str) -> list[str]:
    """Return the arguments in the order of kafkatest's service."""
    servers = ["--bootstrap-server", broker.bootstrap_servers]
    return ["verifiable-producer", "--topic", "t", *servers, *overrides, "--producer.config", str(options_file)]


def run(capsys: pytest.CaptureFixture[str], command: Sequence[str]) -> list[Event]:
    assert main(command) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def events_named(events: Sequence[Event], name: str) -> list[Event]:
    return [event for event in events if event["name"] == name]


def stored_records(broker: EmbeddedBroker) -> set[tuple[str, int, int]]:
    """Return the value, partition and offset of each stored record."""
    rows = read_topic(broker.bootstrap_servers, "t").select(["value", "partition", "offset"]).to_pylist()
    return {(row["value"].decode(), row["partition"], row["offset"]) for row in rows}


def test_prints_partition_and_offset_of_each_acknowledged_record(
    broker: EmbeddedBroker, options_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = run(capsys, arguments(broker, options_file, "--max-messages", "200", "--acks", "-1"))
    acknowledged = events_named(events, "producer_send_success")
    assert events[0]["name"] == "startup_complete"
    assert [event["name"] for event in events][-2:] == ["shutdown_complete", "tool_data"]
    assert {(event["value"], event["partition"], event["offset"]) for event in acknowledged} == stored_records(broker)
    assert sorted(int(event["value"]) for event in acknowledged) == list(range(200))
    assert {(event["topic"], event["key"]) for event in acknowledged} == {("t", None)}
    assert (events[-1]["sent"], events[-1]["acked"], events[-1]["target_throughput"]) == (200, 200, -1)


def test_writes_requested_keys_values_and_timestamps(
    broker: EmbeddedBroker, options_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--value-prefix", "7", "--repeating-keys", "2", "--message-create-time", "1000"]
    run(capsys, arguments(broker, options_file, "--max-messages", "3", *settings))
    rows = read_topic(broker.bootstrap_servers, "t").sort_by("value").to_pylist()
    assert [(row["value"], row["key"]) for row in rows] == [(b"7.0", b"0"), (b"7.1", b"1"), (b"7.2", b"0")]
    assert rows[0]["timestamp"].timestamp() >= 1
    assert rows[0]["timestamp"].year == 1970


@pytest.mark.parametrize("count", ["0", "-1"])
def test_rejects_number_of_repeating_keys_below_one(
    broker: EmbeddedBroker, options_file: Path, capsys: pytest.CaptureFixture[str], count: str
) -> None:
    command = arguments(broker, options_file, "--max-messages", "1", "--repeating-keys", count)
    assert main(command) == EXIT_FAILED
    assert capsys.readouterr() == ("", f"pykafka: --repeating-keys must be at least 1, not {count}\n")


def test_prints_error_of_each_failed_record(
    broker: EmbeddedBroker, options_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.faults.on(topic="t").produce_fails("INVALID_REQUIRED_ACKS", times=1)
    settings = ["-X", "batch.size=0", "-X", "max.in.flight.requests.per.connection=1"]
    events = run(capsys, arguments(broker, options_file, "--max-messages", "5", *settings))
    failed = events_named(events, "producer_send_error")
    acknowledged = events_named(events, "producer_send_success")
    assert failed
    assert {event["topic"] for event in failed} == {"t"}
    assert all("INVALID_REQUIRED_ACKS" in event["message"] and event["exception"] for event in failed)
    assert sorted(int(event["value"]) for event in [*failed, *acknowledged]) == list(range(5))
    assert {event["value"] for event in acknowledged} == {value for value, _, _ in stored_records(broker)}
    assert events[-1]["acked"] == len(acknowledged)


def test_documented_settings_of_kafkatest_run_this_command(broker: EmbeddedBroker, options_file: Path) -> None:
    (settings,) = map(json.loads, blocks("docs/cli.md", "json"))
    name, command = shlex.split(settings["VerifiableProducer"]["exec_cmd"])
    assert (name, command) == ("pykafka", arguments(broker, options_file)[0])


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    whole_command = [sys.executable, "-m", "spark_kafka_sink", *command]
    with subprocess.Popen(whole_command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_command_after_every_record_has_a_result(
    broker: EmbeddedBroker, options_file: Path, stop_signal: signal.Signals
) -> None:
    events: list[Event] = []
    with running(arguments(broker, options_file, "--throughput", "1000")) as process:
        assert process.stdout is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if len(events) == 20:
                process.send_signal(stop_signal)
        assert process.wait() == 0
    acknowledged = events_named(events, "producer_send_success")
    assert {(event["value"], event["partition"], event["offset"]) for event in acknowledged} == stored_records(broker)
    assert [event["name"] for event in events][-2:] == ["shutdown_complete", "tool_data"]
    assert events[-1]["sent"] == events[-1]["acked"] == len(acknowledged)
