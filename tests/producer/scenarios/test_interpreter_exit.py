"""Programs that end without close() deliver their records. Each test runs a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import blocks
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

PRODUCER = (
    "from spark_kafka_sink import KafkaProducer\nproducer = KafkaProducer(bootstrap_servers={servers!r}, {options})\n"
)
LINGER = "linger_ms=3_600_000, delivery_timeout_ms=7_200_000"
"""Options under which no record is sent before the program ends."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


def run(broker: EmbeddedBroker, program: str, options: str = LINGER) -> subprocess.CompletedProcess[str]:
    code = PRODUCER.format(servers=broker.bootstrap_servers, options=options) + program
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_TIMEOUT_SECONDS, check=False
    )


def values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    return list(broker.topic(topic).read().column("value").to_pylist())


@pytest.mark.parametrize("end", ["", "del producer\n", "raise SystemExit(0)\n"])
def test_program_without_close_delivers_all_records(broker: EmbeddedBroker, end: str) -> None:
    topic = f"all-{len(end)}"
    broker.create_topic(topic)
    done = run(broker, f"for number in range(100): producer.send({topic!r}, b'%d' % number)\n{end}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert values(broker, topic) == [b"%d" % number for number in range(100)]


def test_failing_program_delivers_records_sent_before(broker: EmbeddedBroker) -> None:
    broker.create_topic("failing")
    done = run(broker, "producer.send('failing', b'v')\nraise ValueError('a fault')\n")
    assert done.returncode == 1
    assert values(broker, "failing") == [b"v"]


def test_producer_dropped_by_its_own_expression_delivers_its_record(broker: EmbeddedBroker) -> None:
    broker.create_topic("dropped")
    servers = broker.bootstrap_servers
    done = run(broker, f"print(KafkaProducer(bootstrap_servers={servers!r}).send('dropped', b'v').result().offset)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_exit_waits_for_flush_at_exit_and_logs_undelivered_records(broker: EmbeddedBroker) -> None:
    broker.create_topic("silent")
    rule = broker.control.when("PRODUCE", topic="silent", times=None).never_respond()
    try:
        done = run(
            broker,
            "for _ in range(3): producer.send('silent', b'v')\n",
            "flush_at_exit=0.2, linger_ms=0, client_id='c'",
        )
    finally:
        rule.remove()
    assert done.returncode == 0
    assert done.stderr.startswith(
        "KafkaProducer c was dropped, or the program exited, without close(). No acknowledgement was received for 3 "
        "records. First error: "
    )
    assert done.stderr.count("\n") == 1


def test_exit_sends_nothing_when_flush_at_exit_is_zero(broker: EmbeddedBroker) -> None:
    broker.create_topic("untimed")
    done = run(broker, "producer.send('untimed', b'v')\n", f"flush_at_exit=0, {LINGER}")
    assert (done.returncode, values(broker, "untimed")) == (0, [])
    assert "No acknowledgement was received for 1 record. " in done.stderr


def test_exit_of_worker_flushes_no_task(broker: EmbeddedBroker) -> None:
    """One lease is never released, and the other one ends with an exception. Neither is flushed."""
    broker.create_topic("tasks")
    options = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "3600000", "delivery.timeout.ms": "7200000"}
    done = run(
        broker,
        "from spark_kafka_sink.spark.pool import PRODUCER_POOL, lease_producer\n"
        f"lease = lease_producer(PRODUCER_POOL, {options!r}, 60)\n"
        "lease.__enter__().send('tasks', b'open')\n"
        f"with lease_producer(PRODUCER_POOL, {options!r}, 60) as failing:\n"
        "    failing.send('tasks', b'failed')\n"
        "    raise SystemExit(0)\n",
    )
    assert (done.returncode, values(broker, "tasks")) == (0, [])


def test_documented_loop_ends_at_sigterm_and_closes_its_producer(broker: EmbeddedBroker) -> None:
    broker.create_topic("ticks")
    (program,) = (block for block in blocks("docs/producer.md") if "SIGTERM" in block)
    code = program.replace("localhost:9092", broker.bootstrap_servers)
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            wait_until(lambda: len(values(broker, "ticks")) > 0)
            process.terminate()
            assert process.wait(WAIT_TIMEOUT_SECONDS) == 0
        finally:
            process.kill()


def test_handler_that_calls_exit_makes_sigterm_a_normal_exit(broker: EmbeddedBroker) -> None:
    broker.create_topic("terminated")
    done = run(
        broker,
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "producer.send('terminated', b'v')\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert values(broker, "terminated") == [b"v"]


def test_forked_child_does_not_send_records_of_its_parent(broker: EmbeddedBroker) -> None:
    broker.create_topic("forked")
    done = run(
        broker,
        "import os, sys\nproducer.send('forked', b'v')\nchild = os.fork()\nif child: os.waitpid(child, 0)\n",
    )
    assert (done.returncode, values(broker, "forked")) == (0, [b"v"])
