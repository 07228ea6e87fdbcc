"""The commands of docs/cli.md run against an embedded broker. Only addresses, paths and sizes are replaced.

`pykafka demo`, which needs Spark, is run by integration/test_demo.py.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.cli.client_options import parse_properties
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import blocks, command_lines
from tests.reports.report_factories import make_micro_batches

PAGE = "docs/cli.md"
SMALLER = {"--records 2000000": "--records 2000", "--records 60000": "--records 100"}
FOLLOWS = " --follow "
LINES = command_lines(PAGE)
RUN_ELSEWHERE = ("eval", "pykafka broker", "pykafka demo", "pykafka verify")
"""Beginnings of commands that other tests run."""
ONCE = [line for line in LINES if "pykafka" in line and FOLLOWS not in line and not line.startswith(RUN_ELSEWHERE)]
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"orders": 2, "numbers": 1, "words": 1, "scratch": 2}) as broker:
        with KafkaProducer(broker.client_options) as producer:
            for number in range(4):
                producer.send("orders", f'{{"order": {number}}}', key=f"o-{number}")
        yield broker


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a directory with a file of orders and the reports of a job."""
    pq.write_table(pa.table({"id": ["o-8", "o-9"], "payload": ["a", "b"]}), tmp_path / "orders.parquet")
    (tmp_path / "reports").mkdir()
    for report in make_micro_batches(3):
        save_report(f"{tmp_path}/reports/", report)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(broker: EmbeddedBroker, prefix: str) -> None:
    config = parse_client_config({"bootstrap.servers": broker.bootstrap_servers})
    with Driver(ExactlyOnceSettings(config, prefix, writer_kind=WriterKind.JOB)) as driver:
        driver.begin("a start")


def adapt_command(line: str, broker: EmbeddedBroker, directory: Path) -> str:
    line = line.replace("localhost:9092", broker.bootstrap_servers)
    line = re.sub(r"s3a://bucket/reports|/data/reports/", f"{directory}/reports/", line)
    for size, smaller in SMALLER.items():
        line = line.replace(size, smaller)
    return line


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the pykafka command of the line and return its status. A shell runs the commands before a pipe."""
    shell_part, separator, command = line.rpartition("pykafka ")
    assert separator
    if shell_part:
        piped = subprocess.run(["bash", "-c", shell_part.rstrip("| ")], capture_output=True, check=True).stdout
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(piped))))
    return main(shlex.split(command.partition(" | ")[0]))


@pytest.mark.parametrize("line", ONCE)
def test_documented_command_succeeds(
    broker: EmbeddedBroker, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output, line: str
) -> None:
    prefix = re.search(r"transactions .*--prefix (\S+)", line)
    if prefix is not None:  # readers of the page have a query with this prefix
        begin(broker, prefix[1])
    status = run(adapt_command(line, broker, directory), monkeypatch)
    output = capfd.readouterr()
    assert status == 0, output.err
    assert output.out or output.err or "--html" in line or "produce" in line


def test_documented_follow_prints_new_records(
    broker: EmbeddedBroker, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    """`-n 1` replaces Ctrl-C. The writer continues, because the test cannot tell when the reader reaches the end."""
    (line,) = (line for line in LINES if FOLLOWS in line)
    done = threading.Event()

    def write() -> None:
        with KafkaProducer(broker.client_options) as producer:
            while not done.wait(0.02):
                producer.send("orders", "later", key="o-7")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert run(adapt_command(line, broker, directory) + " -n 1", monkeypatch) == 0
    finally:
        done.set()
        writer.join()
    assert capfd.readouterr().out == "o-7\tlater\n"


def test_documented_produce_commands_write_records(
    broker: EmbeddedBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ONCE:
        if "produce" in line:
            assert run(adapt_command(line, broker, directory), monkeypatch) == 0
    assert broker.topic("numbers").read()["value"].to_pylist()[-1] == b"1000"
    rows = broker.topic("words").read()
    assert (rows["key"].to_pylist()[-1], rows["value"].to_pylist()[-1]) == (b"alice", b"hello")
    assert rows["headers"].to_pylist()[-1] == [{"key": "source", "value": b"shell"}]
    assert {b"o-8", b"o-9"} <= set(broker.topic("orders").read()["key"].to_pylist())


def test_documented_jq_filter_finds_value(
    broker: EmbeddedBroker, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    (line,) = (line for line in ONCE if line.endswith(" | jq .value"))
    assert run(adapt_command(line, broker, directory), monkeypatch) == 0
    values = [json.loads(row)["value"] for row in capfd.readouterr().out.splitlines()]
    assert '{"order": 3}' in values


def test_documented_report_command_writes_page(
    broker: EmbeddedBroker, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = (line for line in ONCE if "--html" in line)
    assert run(adapt_command(line, broker, directory), monkeypatch) == 0
    assert (directory / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_documented_options_file_is_valid(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "properties")
    options = parse_properties(text.splitlines(), "--command-config")
    security = ProducerConfig.parse(options).security
    assert (security.protocol, security.login.mechanism if security.login else None) == ("SASL_SSL", "SCRAM-SHA-512")


def test_documented_broker_listens_until_interrupted(tmp_path: Path) -> None:
    (line,) = (line for line in LINES if line.startswith("pykafka broker"))
    arguments = shlex.split(line.replace("/tmp/kafka", str(tmp_path)))[1:]
    command = [sys.executable, "-m", "spark_kafka_sink", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            output = [process.stdout.readline() for _ in range(5)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert output[0].startswith("listening on 127.0.0.1:")
    assert output[-1].split() == ["orders", "3", "0"]


def test_documented_completion_works_in_bash() -> None:
    (line,) = (line for line in LINES if line.startswith("eval"))
    shim = f'pykafka() {{ {shlex.quote(sys.executable)} -m spark_kafka_sink "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{shim}\n{line}\ncomplete -p pykafka"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" pykafka\n")


def test_monitoring_page_shows_columns_of_report(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (shown,) = (text for text in blocks("docs/monitoring.md", "text") if "pykafka report" in text)
    command, job_id, heading, *_ = shown.splitlines()
    assert main(shlex.split(command.replace("/data/reports/", f"{directory}/reports/"))[2:]) == 0
    output = capfd.readouterr().out.splitlines()
    assert (output[0], output[1].split()) == (job_id, heading.split())
