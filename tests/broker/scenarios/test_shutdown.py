"""Shutdown of `pykafka broker` by SIGTERM and SIGINT in any state, or by an error."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.broker.loopback_client import LoopbackClient

STUCK_HANDLERS_PROGRAM = """
import threading
from spark_kafka_sink import cli
from spark_kafka_sink.cli import signal_wait
from spark_kafka_sink.broker import socket_server
signal_wait.MAX_SHUTDOWN_SECONDS = {seconds}
def stuck(*_):
    print("stuck", flush=True)
    threading.Event().wait()
socket_server.handle_request = stuck
raise SystemExit(cli.main(["broker", "--port", "0"]))
"""
FAILING_PROCESSOR_PROGRAM = """
from spark_kafka_sink import cli
from spark_kafka_sink.broker.processor import Processor
def fail(*_):
    raise RuntimeError("an injected error")
Processor._process_completed_receives = fail
raise SystemExit(cli.main(["broker", "--port", "0"]))
"""


class BrokerProcess:
    """A process that runs `pykafka broker`."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.bootstrap = self.read_line().rsplit(" ", 1)[1]

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_line(self) -> str:
        """Read a line of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the process. Return its exit status and its standard error."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


def stuck_broker(seconds: float) -> BrokerProcess:
    """Start a broker and block its handlers. A signal ends it after `seconds`."""
    broker = BrokerProcess(STUCK_HANDLERS_PROGRAM.format(seconds=seconds))
    with LoopbackClient(broker.bootstrap) as client:
        client.send((MetadataRequest(topics=None), 9))
        assert any(line == "stuck" for line in iter(broker.read_line, "")), broker.wait()
    return broker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_broker_with_stuck_handlers_and_prints_their_stacks(number: signal.Signals) -> None:
    with stuck_broker(0.2) as broker:
        broker.process.send_signal(number)
        status, errors = broker.wait()
    assert status == 1
    assert "Timeout" in errors
    assert "in stuck" in errors


def test_second_signal_ends_broker_immediately() -> None:
    with stuck_broker(3600) as broker:
        broker.process.send_signal(signal.SIGTERM)
        while broker.process.poll() is None:
            broker.process.send_signal(signal.SIGTERM)
        assert broker.wait()[0] == -signal.SIGTERM


def test_failed_broker_exits_with_status_1_and_error_message() -> None:
    with BrokerProcess(FAILING_PROCESSOR_PROGRAM) as broker:
        with LoopbackClient(broker.bootstrap) as client:
            assert client.request(MetadataRequest(topics=None), 9) is None
        status, errors = broker.wait()
    assert status == 1
    assert "pykafka: The embedded broker failed: RuntimeError: an injected error" in errors
