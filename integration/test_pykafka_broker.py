"""`pykafka broker`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from integration.support.librdkafka import read_topic
from tests.waiting import WAIT_TIMEOUT_SECONDS

COMMAND = [sys.executable, "-m", "spark_kafka_sink.cli", "broker", "--port", "0"]


def test_broker_command_prints_address_keeps_topics_and_ends_cleanly(tmp_path: Path) -> None:
    read = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        command = [*COMMAND, "--topic", "t:2", "--nodes", "2", "--data", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                words, bootstrap = process.stdout.readline().strip().rsplit(" ", 1)
                assert words == "listening on"
                producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
                producer.produce("t", b"a")
                assert producer.flush(WAIT_TIMEOUT_SECONDS) == 0
                del producer
                read.append(len(read_topic(bootstrap, "t")))
                table_rows = [process.stdout.readline().split() for _ in range(4)]
            finally:
                process.send_signal(number)
            output, errors = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
        assert (process.returncode, output, errors) == (0, "", "")
        assert table_rows[0][:3] == ["2", "nodes,", "PLAINTEXT,"]
        assert (table_rows[1], table_rows[3]) == (["topic", "partitions", "records"], ["t", "2", str(read[-1] - 1)])
    assert read == [1, 2, 3]
