"""A stream whose driver is killed, again and again, and started again from its checkpoint."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from integration.support.artifacts import ROOT
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.processes import kill_all
from integration.support.spark_jobs import ROWS_PER_BATCH
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

KILLS = 50 if os.environ.get("SOAK") else 10
KILL_AFTER_SECONDS_MAX = 1.0


class Driver:
    """A driver and everything below it, which is killed at once: Python, the JVM, the Python workers.

    It starts Spark at once and the stream when it is told to, so that the next one is ready when this one is killed.
    """

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        command = [sys.executable, "-m", "integration.support.spark_jobs", "stream", bootstrap, topic, str(folder)]
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def begin(self, last_batch: int = 1_000_000) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        lines = iter(self._process.stdout.readline, b"")
        assert any(line == b"ready\n" for line in lines), "the driver ended; see driver.log"
        self._process.stdin.write(b"%d\n" % last_batch)
        self._process.stdin.flush()

    def kill(self) -> None:
        if self._process.poll() is None:
            kill_all(self._process.pid)
            self._process.wait()
        for file in (self._log, self._process.stdin, self._process.stdout):
            if file is not None:
                file.close()

    def wait(self) -> None:
        assert self._process.wait(PATIENCE_SECONDS) == 0


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


def _unfinished_batch(checkpoint: Path) -> int | None:
    """The micro-batch that was planned but not committed: the one that the next start runs again."""
    planned, committed = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    return planned if planned > committed else None


def test_a_stream_killed_again_and_again_loses_nothing_and_doubles_only_what_was_run_again(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    checkpoint = tmp_path / "checkpoint"
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    run_again: set[int] = set()
    following = Driver(kafka.bootstrap(), topic, tmp_path)
    try:
        for _ in range(KILLS):
            driver, following = following, Driver(kafka.bootstrap(), topic, tmp_path)
            try:
                planned = _newest(checkpoint / "offsets")
                driver.begin()
                wait_until(lambda planned=planned: _newest(checkpoint / "offsets") > planned)  # type: ignore[misc]
                time.sleep(chance.uniform(0.0, KILL_AFTER_SECONDS_MAX))
            finally:
                driver.kill()
            unfinished = _unfinished_batch(checkpoint)
            if unfinished is not None:
                run_again.add(unfinished)

        last_batch = _newest(checkpoint / "commits") + 3
        following.begin(last_batch)
        following.wait()
    finally:
        following.kill()

    count = Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic))
    expected = range((last_batch + 1) * ROWS_PER_BATCH)
    assert [number for number in expected if not count[number]] == []
    doubled = {number // ROWS_PER_BATCH for number, times in count.items() if times > 1}
    assert doubled <= run_again
