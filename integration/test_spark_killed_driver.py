"""A stream whose driver is killed, again and again, and started again from its checkpoint."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from integration.support.driver_process import DriverProcess, newest
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.spark_jobs import ROWS_PER_BATCH
from integration.support.stream_history import anomalies_of_rows
from tests.history import Kind
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

KILLS = 50 if os.environ.get("SOAK") else 2
"""Few in the short run: test_exactly_once_killed.py kills a stream of the same guarantee as well."""
KILL_AFTER_SECONDS_MAX = 1.0


def _driver(bootstrap: str, topic: str, folder: Path) -> DriverProcess:
    return DriverProcess(["spark_jobs", "stream", bootstrap, topic, str(folder)], folder)


def _unfinished_batch(checkpoint: Path) -> int | None:
    """The micro-batch that was planned but not committed: the one that the next start runs again."""
    planned, committed = newest(checkpoint / "offsets"), newest(checkpoint / "commits")
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
    following = _driver(kafka.bootstrap(), topic, tmp_path)
    try:
        for _ in range(KILLS):
            driver, following = following, _driver(kafka.bootstrap(), topic, tmp_path)
            try:
                planned = newest(checkpoint / "offsets")
                driver.begin()
                wait_until(lambda planned=planned: newest(checkpoint / "offsets") > planned)  # type: ignore[misc]
                time.sleep(chance.uniform(0.0, KILL_AFTER_SECONDS_MAX))
            finally:
                driver.kill()
            unfinished = _unfinished_batch(checkpoint)
            if unfinished is not None:
                run_again.add(unfinished)

        last_batch = newest(checkpoint / "commits") + 3
        following.begin(last_batch)
        assert following.wait() == 0
    finally:
        following.kill()

    stored = read_topic(kafka.bootstrap(), topic)
    found = anomalies_of_rows(stored, last_batch + 1, ROWS_PER_BATCH)
    # query.stop() may interrupt the batch after last_batch. Without transactions its first rows are visible.
    assert [each for each in found if each.kind is Kind.LOST] == []
    count = Counter(int(record.value or b"") for record in stored)
    doubled = {number // ROWS_PER_BATCH for number, times in count.items() if times > 1}
    assert doubled <= run_again
