"""Streams whose driver is killed, at random and before and after each step: exactly once means that each row is there
once, in the order of its key. Beside them one that writes at least once: it has rows twice, so the test can fail.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from integration.support.driver_process import DriverProcess, newest
from integration.support.exactly_once_jobs import ROWS_PER_BATCH
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
QUERIES = 3
"""Of those that write exactly once. They share a driver, so each kill of it is a restart of each of them."""
STEPS = ("start", "task", "write", "decide", "commit", "losers")
PLACES = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
RESTARTS = 300 if SOAK else 36
KILLS = RESTARTS // QUERIES
BROKER_RESTARTS = 8 if SOAK else 1
RANDOM_SECONDS = 1.5


class Streams:
    """The topics of several queries, one for each, and where their checkpoints are."""

    def __init__(self, kafka: KafkaCluster, folder: Path, replicas: int) -> None:
        self.kafka = kafka
        self.folder = folder
        self.steps = folder / "steps"
        self.steps.mkdir()
        bootstrap = kafka.bootstrap()
        guarantees = ["exactly-once"] * QUERIES + ["at-least-once"]
        self.topics = {create_topic(bootstrap, partitions=3, replicas=replicas): each for each in guarantees}

    def driver(self) -> DriverProcess:
        wanted = json.dumps({topic: {"deliveryGuarantee": each} for topic, each in self.topics.items()})
        arguments = ["exactly_once_jobs", "streams", self.kafka.bootstrap(), str(self.folder), wanted]
        return DriverProcess(arguments, self.folder, {"PYKAFKA_TEST_STEPS": str(self.steps)})

    def newest(self, log: str) -> list[int]:
        """The newest micro-batch of each query."""
        return [newest(self.folder / topic / log) for topic in self.topics]

    def wait_for_progress(self, driver: DriverProcess) -> None:
        """Each query has planned another micro-batch than before, or finished what was planned."""
        before = self.newest("commits")

        def has_progressed() -> bool:
            assert not driver.has_ended, f"the driver ended; see {driver.log}"
            return all(now > then for now, then in zip(self.newest("commits"), before, strict=True))

        wait_until(has_progressed)

    def stop_at(self, driver: DriverProcess, place: str) -> None:
        """Wait until a process of one of the queries stops there."""
        (self.steps / "stop-at").write_text(place)
        wait_until(lambda: (self.steps / "stopped").exists() or driver.has_ended)
        assert not driver.has_ended, f"the driver ended; see {driver.log}"

    def forget_place(self) -> None:
        """When what has stopped there was killed: it would go on."""
        for name in ("stop-at", "stopped"):
            (self.steps / name).unlink(missing_ok=True)


@pytest.fixture
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Streams:
    """In the long run on three brokers, of which one is down at times; one that is restarted does for the short one."""
    kafka: KafkaCluster = request.getfixturevalue("kafka3" if SOAK else "kafka")
    return Streams(kafka, tmp_path, replicas=3 if SOAK else 1)


def test_streams_killed_again_and_again_have_each_row_once_and_in_order(streams: Streams) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    places: list[str | None] = [*PLACES, *[None] * max(0, KILLS - len(PLACES))]
    chance.shuffle(places)
    restarts_at = set(chance.sample(range(KILLS), BROKER_RESTARTS))
    following = streams.driver()
    try:
        for kill in range(KILLS):
            driver, following = following, streams.driver()
            try:
                driver.begin()
                streams.wait_for_progress(driver)
                if kill in restarts_at:
                    kill_and_start_broker(streams.kafka, chance)
                place = places[kill]
                if place is None:
                    time.sleep(chance.uniform(0.0, RANDOM_SECONDS))
                else:
                    streams.stop_at(driver, place)
            finally:
                driver.kill()
                streams.forget_place()
        following.begin(batches=3)
        assert following.wait() == 0, f"see {following.log}"
    finally:
        following.kill()
    control = check(streams)
    assert control, "at least once has no row twice: the kills came at no time that matters"


def kill_and_start_broker(kafka: KafkaCluster, chance: random.Random) -> None:
    node = chance.choice([node.node_id for node in kafka.nodes.values() if node.is_broker])
    kafka.kill(node)
    kafka.start_node(node)


def check(streams: Streams) -> int:
    """Of the queries that write exactly once each row is there once. Returns how many rows the other one has twice."""
    doubled = 0
    for topic, guarantee in streams.topics.items():
        rows = (newest(streams.folder / topic / "commits") + 1) * ROWS_PER_BATCH
        stored = read_topic(streams.kafka.bootstrap(), topic)
        count = Counter(int(record.value or b"") for record in stored)
        missing = [number for number in range(rows) if not count[number]]
        twice = [number for number, times in count.items() if times > 1]
        assert not missing, f"{topic} ({guarantee}): {len(missing)} rows are missing, the first is {missing[0]}"
        if guarantee == "at-least-once":
            doubled += len(twice)
            continue
        assert not twice, f"{topic}: {len(twice)} rows are there twice, the first is {min(twice)}"
        # The query may have committed one more micro-batch when it was stopped, but not a part of one.
        assert sorted(count) == list(range(len(count)))
        assert len(count) % ROWS_PER_BATCH == 0
        last: dict[bytes | None, int] = {}
        for record in stored:
            number = int(record.value or b"")
            assert number > last.get(record.key, -1), f"{topic}: row {number} comes after {last[record.key]}"
            last[record.key] = number
    return doubled
