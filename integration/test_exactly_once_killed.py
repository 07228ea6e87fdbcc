"""Streams whose driver is killed, at random and before and after each step: exactly once means that each row is there
once, in the order of its key. Beside them one that writes at least once: it has rows twice, so the test can fail.

One driver runs all the queries, so each kill of it is a restart of each of them; a restart counts for each query that
writes exactly once. With SOAK=1 there are four runs, on one broker and on three, with transactions of both versions.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.driver_process import DriverProcess, newest
from integration.support.exactly_once_jobs import ROWS_PER_BATCH
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.stops import Stops
from integration.support.transactional_writer import coordinator_of, leader_of
from spark_kafka_sink.exactly_once.names import checkpoint_name, driver_id, prefix_of
from spark_kafka_sink.exactly_once.steps import ABORT, STEPS
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
CLUSTERS = [(brokers, version) for brokers in (1, 3) for version in (1, 2)] if SOAK else [(1, 2)]
"""How many brokers, and the version of transactions."""
QUERIES = 6 if SOAK else 3
"""Of those that write exactly once."""
PLACES = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
KILLS = 14 if SOAK else 10
"""Of one run: 336 restarts in the long form, 30 in the short one."""
RANDOM_KILLS = 5 if SOAK else 3
"""The other kills are aimed at the places, one or two kills each, so that each place is hit."""
BROKER_RESTARTS = 5 if SOAK else 1
BATCHES = 200 if SOAK else 30
"""Of all the queries that write exactly once, at least."""
BATCHES_BEFORE_A_KILL_MAX = 4 if SOAK else 1
RANDOM_SECONDS = 1.5


class Streams:
    """The topics of several queries, one for each, and where their checkpoints are."""

    def __init__(self, kafka: KafkaCluster, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.stops = Stops(folder / "steps")
        guarantees = ["exactly-once"] * QUERIES + ["at-least-once"]
        replicas = kafka.brokers
        self.topics = {create_topic(kafka.bootstrap(), partitions=3, replicas=replicas): each for each in guarantees}

    def driver(self) -> DriverProcess:
        wanted = json.dumps({topic: {"deliveryGuarantee": each} for topic, each in self.topics.items()})
        arguments = ["exactly_once_jobs", "streams", self.kafka.bootstrap(), str(self.folder), wanted]
        return DriverProcess(arguments, self.folder, self.stops.environment)

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

    def stop(self, driver: DriverProcess, places: list[str]) -> None:
        """Wait until processes of the driver have stopped at all of these places."""
        for place in sorted(places, key=lambda place: not place.endswith(ABORT)):
            (self.stops.abort if place.endswith(ABORT) else self.stops.stop)(driver, place)

    def kill_broker(self, chance: random.Random) -> str:
        """The leader of a partition, or the coordinator of a driver, of one that writes exactly once. It comes back."""
        topic = chance.choice([topic for topic, each in self.topics.items() if each == "exactly-once"])
        role = chance.choice(["leader", "coordinator"])
        if role == "leader":
            node = leader_of(self.kafka, topic)
        else:
            prefix = prefix_of("stream", checkpoint_name(str(self.folder / topic)))
            node = coordinator_of(self.kafka, driver_id(prefix))
        self.kafka.kill(node)
        self.kafka.start_node(node, wait=False)
        return role


@pytest.fixture(params=CLUSTERS, ids=[f"brokers-{brokers}-version-{version}" for brokers, version in CLUSTERS])
def kafka_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    brokers, version = request.param
    if not SOAK:
        yield request.getfixturevalue("kafka")
        return
    folder = tmp_path_factory.mktemp("kafka-killed") / "cluster"
    with KafkaCluster(folder, brokers=brokers, features=(f"transaction.version={version}",)) as cluster:
        yield cluster


def test_streams_killed_again_and_again_have_each_row_once_and_in_order(
    kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    streams = Streams(kafka_cluster, tmp_path)
    with_broker = set(chance.sample(range(KILLS), BROKER_RESTARTS))
    began = time.monotonic()
    following = streams.driver()
    try:
        for kill, places in enumerate(aimed(chance)):
            driver, following = following, streams.driver()
            how = kill_driver(streams, driver, places, chance, with_broker=kill in with_broker)
            kafka_cluster.wait_until_ready()
            print(f"{time.monotonic() - began:.0f} s, kill {kill + 1}: {how}, batches {streams.newest('commits')}")
        following.begin(batches=max(3, BATCHES // QUERIES - min(streams.newest("commits"))))
        assert following.wait() == 0, f"see {following.log}"
    finally:
        following.kill()
    control = check(streams)
    batches = sum(
        number + 1
        for number, guarantee in zip(streams.newest("commits"), streams.topics.values(), strict=True)
        if guarantee == "exactly-once"
    )
    print(
        f"{time.monotonic() - began:.0f} s: {KILLS} kills of a driver, each of which restarts {QUERIES} queries that "
        f"write exactly once, and {BROKER_RESTARTS} of a broker; {batches} micro-batches, each row once; at least once "
        f"has {control} rows twice"
    )
    assert batches >= BATCHES
    assert control, "at least once has no row twice: the kills came at no time that matters"


def kill_driver(
    streams: Streams, driver: DriverProcess, places: list[str], chance: random.Random, *, with_broker: bool
) -> str:
    """Let the driver begin, and kill it where its processes have stopped at these places, or at random."""
    try:
        driver.begin()
        for _ in range(1 if places else chance.randint(1, BATCHES_BEFORE_A_KILL_MAX)):
            streams.wait_for_progress(driver)
        broker = f", and the {streams.kill_broker(chance)}" if with_broker else ""
        if places:
            streams.stop(driver, places)
        else:
            time.sleep(chance.uniform(0.0, RANDOM_SECONDS))
    finally:
        driver.kill()
        streams.stops.forget()
    return (" and ".join(places) or "at random") + broker


def aimed(chance: random.Random) -> list[list[str]]:
    """At which places each kill is aimed; one without any comes at random."""
    places = list(PLACES)
    chance.shuffle(places)
    hands = KILLS - RANDOM_KILLS
    aims = [places[first::hands] for first in range(hands)] + [[] for _ in range(RANDOM_KILLS)]
    chance.shuffle(aims)
    return aims


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
