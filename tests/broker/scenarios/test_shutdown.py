"""`pykafka broker` ends at SIGTERM and SIGINT, whatever state it is in."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.broker.loopback_client import LoopbackClient

STUCK = """
import threading
from spark_kafka_sink import cli
from spark_kafka_sink.cli import signal_wait
from spark_kafka_sink.broker import socket_server
signal_wait.END_SECONDS_MAX = {seconds}
def stuck(*_):
    print("stuck", flush=True)
    threading.Event().wait()
socket_server.handle_request = stuck
raise SystemExit(cli.main(["broker", "--port", "0"]))
"""
FAILING = """
from spark_kafka_sink import cli
from spark_kafka_sink.broker.processor import Processor
def broken(*_):
    raise RuntimeError("a fault of ours")
Processor._process_completed_receives = broken
raise SystemExit(cli.main(["broker", "--port", "0"]))
"""


class BrokerProcess:
    """A broker's process, and what it has printed."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.bootstrap = self.line().rsplit(" ", 1)[1]

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Its status, and what it has said on stderr."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


def stuck_broker(seconds: float) -> BrokerProcess:
    broker = BrokerProcess(STUCK.format(seconds=seconds))
    with LoopbackClient(broker.bootstrap) as client:
        client.send((MetadataRequest(topics=None), 9))
        assert any(line == "stuck" for line in iter(broker.line, "")), broker.end()
    return broker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_broker_with_stuck_handlers_and_prints_their_stacks(number: signal.Signals) -> None:
    with stuck_broker(0.2) as broker:
        broker.process.send_signal(number)
        status, errors = broker.end()
    assert status == 1
    assert "Timeout" in errors
    assert "in stuck" in errors


def test_second_signal_ends_broker_at_once() -> None:
    with stuck_broker(3600) as broker:
        broker.process.send_signal(signal.SIGTERM)
        while broker.process.poll() is None:
            broker.process.send_signal(signal.SIGTERM)
        assert broker.end()[0] == -signal.SIGTERM


def test_failed_broker_exits_with_status_1_and_error_message() -> None:
    with BrokerProcess(FAILING) as broker:
        with LoopbackClient(broker.bootstrap) as client:
            assert client.request(MetadataRequest(topics=None), 9) is None
        status, errors = broker.end()
    assert status == 1
    assert "pykafka: The embedded broker failed: RuntimeError: a fault of ours" in errors
