"""A stream whose driver is killed, again and again, and started again from its checkpoint."""

from __future__ import annotations

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

pytestmark = pytest.mark.needs("kafka")

KILLS = 10
KILL_AFTER_SECONDS_MAX = 1.0
PATIENCE_SECONDS = 120.0


class Driver:
    """A driver and everything below it, which is killed at once: Python, the JVM, the Python workers."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, last_batch: int) -> None:
        command = [sys.executable, "-m", "integration.support.spark_jobs", "stream", bootstrap, topic, str(folder)]
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            [*command, str(last_batch)], cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True
        )

    def wait_until_started(self) -> None:
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, b"")
        assert any(line == b"started\n" for line in lines), "the driver ended; see driver.log"

    def kill(self) -> None:
        kill_all(self._process.pid)
        self._process.wait()
        self._close()

    def wait(self) -> None:
        assert self._process.wait(PATIENCE_SECONDS) == 0
        self._close()

    def _close(self) -> None:
        self._log.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


def _wait_for_another_batch(checkpoint: Path) -> None:
    before, deadline = _newest(checkpoint / "offsets"), time.monotonic() + PATIENCE_SECONDS
    while _newest(checkpoint / "offsets") == before:
        assert time.monotonic() < deadline, "the stream does not begin; see driver.log"
        time.sleep(0.02)


def _unfinished_batch(checkpoint: Path) -> int | None:
    """The micro-batch that was planned but not committed: the one that the next start runs again."""
    planned, committed = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    return planned if planned > committed else None


def test_a_stream_killed_ten_times_loses_nothing_and_doubles_only_what_was_run_again(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    run_again: set[int] = set()
    for _ in range(KILLS):
        driver = Driver(kafka.bootstrap(), topic, tmp_path, 1_000_000)
        try:
            driver.wait_until_started()
            _wait_for_another_batch(tmp_path / "checkpoint")
            time.sleep(chance.uniform(0.0, KILL_AFTER_SECONDS_MAX))
        finally:
            driver.kill()
        unfinished = _unfinished_batch(tmp_path / "checkpoint")
        if unfinished is not None:
            run_again.add(unfinished)

    last_batch = _newest(tmp_path / "checkpoint" / "commits") + 3
    driver = Driver(kafka.bootstrap(), topic, tmp_path, last_batch)
    try:
        driver.wait_until_started()
        driver.wait()
    finally:
        driver.kill()

    count = Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic))
    expected = range((last_batch + 1) * ROWS_PER_BATCH)
    assert [number for number in expected if not count[number]] == []
    doubled = {number // ROWS_PER_BATCH for number, times in count.items() if times > 1}
    assert doubled <= run_again
