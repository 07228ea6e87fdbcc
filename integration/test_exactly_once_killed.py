"""Streams whose driver is killed before and after the steps of the exactly-once protocol.

Each row of an exactly-once query must be stored once, in the order of its key, and the decision log must be
linearizable. An at-least-once query runs alongside as a control: it must have duplicates, which shows that the test
can fail, but only of rows in micro-batches that were not committed when the driver was killed. It must not lose rows.

At the end, librdkafka reads all topics. Kafka's own consumer reads some of them during the kills, and another Kafka
tool copies these topics at the end. Both must have read the same records as librdkafka.

One driver runs all queries, so a kill restarts each of them; only restarts of exactly-once queries are counted. An
aimed kill happens when several queries have stopped, each at a different place, while the others continue.

SOAK=1 adds kills at random times and at REPEATED_PLACES, and runs the test four times: on one broker and on three, with
both transaction versions.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import pytest

from integration.support.driver_process import DriverProcess, find_newest_batch_id
from integration.support.exactly_once_jobs import ROWS_PER_BATCH
from integration.support.kafka_cluster import KafkaCluster
from integration.support.kafka_witnesses import TransactionalMessageCopier, VerifiableConsumer
from integration.support.librdkafka import create_topic, open_record_counter, read_topic
from integration.support.linearizability import (
    CORRUPTIONS,
    Event,
    assert_corruption_is_found,
    check_histories,
    find_files,
    read_events,
)
from integration.support.stops import DriverEndedError, Stops
from integration.support.stream_history import find_row_anomalies
from integration.support.transactional_writer import find_coordinator, find_leader
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id, derive_prefix, normalize_checkpoint
from tests.exactly_once.log_history import HISTORY_FOLDER
from tests.exactly_once.protocol_steps import ABORT, COMMIT, DECIDE, START, SUPERSEDED, TASK, WRITE
from tests.history import Kind
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
CLUSTERS = [(brokers, version) for brokers in (1, 3) for version in (1, 2)] if SOAK else [(1, 2)]
"""Tested combinations of broker count and transaction version."""
PARTITIONS = 3
QUERIES = 8 if SOAK else 6
"""The number of exactly-once queries. It exceeds the number of places of a kill, because a query stops at one place."""
WITNESSED_QUERIES = QUERIES if SOAK else 1
"""The number of exactly-once queries whose topics Kafka's own clients read, too."""
REPEATED_PLACES = [f"before {step}" for step in (START, WRITE, COMMIT, SUPERSEDED)]
"""Places at which a query is in the same state as after its previous step. The short run leaves them out."""


def list_places(*steps: str) -> list[str]:
    """Return the places before and after the steps."""
    places = [f"{when} {step}" for step in steps for when in ("before", "after")]
    return [place for place in places if SOAK or place not in REPEATED_PLACES]


PLACES_IN_TASKS = list_places(TASK, WRITE)
PLACES = list_places(START, DECIDE, COMMIT, ABORT, SUPERSEDED)
AIMED_KILLS = 6 if SOAK else 2
"""The number of kills for which processes of several queries stop at given places, while the other queries continue.

One of them waits until the at-least-once query has rows in doubt, so that this query writes rows twice.
"""
RANDOM_KILLS = 6 if SOAK else 0
KILLS = AIMED_KILLS + RANDOM_KILLS
"""Kills in one run. All runs with SOAK=1 restart queries 384 times, the short run 12 times."""
BROKER_RESTARTS = 5 if SOAK else 1
BATCHES = 200 if SOAK else 24
"""Minimum number of micro-batches of all exactly-once queries together."""
RANDOM_SECONDS = 1.5
DRIVERS_PER_KILL = 3
ENDED = "the driver ended before it came to its places"
"""Description of a kill whose driver ended before it. The next driver repeats the kill.

To provoke an abort, the test kills one Python worker. On a busy machine, Spark has lost a second worker at the same
time. The query of one of the two workers then aborts without being stopped, and its failure ends the driver.
"""


@dataclass(frozen=True)
class Kill:
    """The conditions of a kill: given places or a random time, and possibly at-least-once rows in doubt."""

    places: tuple[str, ...] = ()
    with_broker: bool = False
    with_rows_in_doubt: bool = False


class Streams:
    """Several queries, each with a topic and a checkpoint."""

    def __init__(self, kafka: KafkaCluster, folder: Path, history: Path) -> None:
        """`history`: the folder for the history of the decision log."""
        self.kafka = kafka
        self.folder = folder
        self.stops = Stops(folder / "steps")
        self._environment = self.stops.environment | {HISTORY_FOLDER: str(history)}
        guarantees = ["exactly-once"] * QUERIES + ["at-least-once"]
        replicas = kafka.brokers
        self.topics = {
            create_topic(kafka.bootstrap(), partitions=PARTITIONS, replicas=replicas): guarantee
            for guarantee in guarantees
        }
        (self.control,) = [topic for topic, guarantee in self.topics.items() if guarantee == "at-least-once"]
        self.exactly_once_topics = [topic for topic, guarantee in self.topics.items() if guarantee == "exactly-once"]
        self.rerun_batches: set[int] = set()
        """Micro-batches of the at-least-once query that were planned, but not committed, when its driver was killed."""

    def create_driver(self) -> DriverProcess:
        return DriverProcess(["exactly_once_jobs", self.kafka.bootstrap()], self.folder, self._environment)

    def begin(self, driver: DriverProcess, batches: int = 1_000_000) -> None:
        """Start all queries. They stop when each has committed this number of further micro-batches."""
        queries = {topic: {"deliveryGuarantee": guarantee} for topic, guarantee in self.topics.items()}
        driver.begin(folder=str(self.folder), queries=queries, batches=batches)

    def find_newest_batch_ids(self, log: str) -> list[int]:
        """Return the newest micro-batch of each query that the log ("offsets" or "commits") contains."""
        return [find_newest_batch_id(self.folder / topic / log) for topic in self.topics]

    def count_last_batches(self) -> int:
        """Return how many micro-batches the last driver must run in each query, at least two."""
        return max(2, BATCHES // QUERIES - 1 - min(self.find_newest_batch_ids("commits")))

    def wait_for_progress(self, driver: DriverProcess, of: Callable[[Iterable[bool]], bool] = all) -> None:
        """Wait until all queries, or any, have committed another micro-batch.

        That is a new micro-batch, or the one in which the driver was killed.
        """
        previous_ids = self.find_newest_batch_ids("commits")

        def has_progressed() -> bool:
            assert not driver.has_ended, f"the driver ended. {driver.describe_log_end()}"
            new_ids = self.find_newest_batch_ids("commits")
            return of(new > previous for new, previous in zip(new_ids, previous_ids, strict=True))

        wait_until(
            has_progressed,
            lambda: f"the newest batches were {previous_ids}, and are {self.find_newest_batch_ids('commits')}",
        )

    def stop(self, driver: DriverProcess, places: Sequence[str]) -> None:
        """Wait until processes of the driver have stopped at all of these places."""
        for place in places:
            if place.endswith(ABORT):
                self.stops.abort(driver, place)
        self.stops.stop(driver, *[place for place in places if place in PLACES and not place.endswith(ABORT)])
        self.stops.stop(driver, *[place for place in places if place in PLACES_IN_TASKS])

    def wait_for_rows_in_doubt(self, driver: DriverProcess) -> None:
        """Wait until the at-least-once query has written rows of a micro-batch that it has not committed."""
        commits_folder = self.folder / self.control / "commits"
        with open_record_counter(self.kafka.bootstrap(), self.control) as count:
            batch_id = -1
            while find_newest_batch_id(commits_folder) != batch_id:
                batch_id, rows = find_newest_batch_id(commits_folder), count()
                wait_until(lambda rows=rows: count() > rows or driver.has_ended)  # type: ignore[misc]
                if driver.has_ended:
                    raise DriverEndedError(f"the driver ended. {driver.describe_log_end()}")

    def kill(self, driver: DriverProcess) -> None:
        """Kill the driver, even if it has ended, and record the micro-batch that the next driver runs again."""
        driver.kill()
        self.stops.clear()
        checkpoint = self.folder / self.control
        planned_batch = find_newest_batch_id(checkpoint / "offsets")
        if planned_batch > find_newest_batch_id(checkpoint / "commits"):
            self.rerun_batches.add(planned_batch)

    def kill_broker(self, chance: random.Random) -> str:
        """Kill and restart the partition leader or the transaction coordinator of an exactly-once query.

        Return "leader" or "coordinator".
        """
        topic = chance.choice(self.exactly_once_topics)
        role = chance.choice(["leader", "coordinator"])
        if role == "leader":
            node = find_leader(self.kafka, topic)
        else:
            prefix = derive_prefix("stream", normalize_checkpoint(str(self.folder / topic)))
            node = find_coordinator(self.kafka, build_driver_id(prefix))
        self.kafka.kill(node)
        self.kafka.start_node(node, wait=False)
        return role


@pytest.fixture(scope="module")
def restarts() -> Iterator[Counter[str]]:
    """Count the restarts of each cluster after which each row was found once, and print them at the end."""
    counts: Counter[str] = Counter()
    yield counts
    print(f"\n{counts.total()} restarts of queries that write exactly once, each row once: {dict(counts)}")


@pytest.fixture(params=CLUSTERS, ids=[f"brokers-{brokers}-version-{version}" for brokers, version in CLUSTERS])
def kafka_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    brokers, version = request.param
    if not SOAK:
        yield request.getfixturevalue("kafka")
        return
    folder = tmp_path_factory.mktemp("kafka-killed") / "cluster"
    with KafkaCluster(folder, brokers=brokers, features=(f"transaction.version={version}",)) as cluster:
        yield cluster


def test_repeatedly_killed_streams_write_each_row_once_and_in_order(
    kafka_cluster: KafkaCluster,
    tmp_path: Path,
    recorded_histories: Path,
    restarts: Counter[str],
    request: pytest.FixtureRequest,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    streams = Streams(kafka_cluster, tmp_path, recorded_histories / request.node.callspec.id)
    started_s = time.monotonic()
    with ExitStack() as stack:
        consumers = start_consumers(streams, chance, stack)
        next_driver = streams.create_driver()
        try:
            for number, kill in enumerate(plan_kills(chance), 1):
                description = ""
                for _ in range(DRIVERS_PER_KILL):
                    driver, next_driver = next_driver, streams.create_driver()
                    description = kill_driver(streams, driver, kill, chance)
                    kafka_cluster.wait_until_ready()
                    print(
                        f"{time.monotonic() - started_s:.0f} s, kill {number}: {description}, "
                        f"batches {streams.find_newest_batch_ids('commits')}"
                    )
                    if description != ENDED:
                        break
                assert description != ENDED, (
                    f"{DRIVERS_PER_KILL} drivers ended before they were killed. {next_driver.describe_log_end()}"
                )
            streams.begin(next_driver, batches=streams.count_last_batches())
            assert next_driver.wait() == 0, next_driver.describe_log_end()
        finally:
            next_driver.kill()
        control = check_topics(streams, consumers)
    restarts[request.node.callspec.id] += KILLS * QUERIES
    batches = sum(
        number + 1
        for number, guarantee in zip(streams.find_newest_batch_ids("commits"), streams.topics.values(), strict=True)
        if guarantee == "exactly-once"
    )
    print(
        f"{time.monotonic() - started_s:.0f} s: {KILLS * QUERIES} restarts of queries that write exactly once, in "
        f"{KILLS} "
        f"kills of a driver of {QUERIES}; {BROKER_RESTARTS} kills of a broker; {batches} micro-batches, each row once; "
        f"at least once has {control} rows twice"
    )
    assert batches >= BATCHES
    assert control, "at least once has no row twice: the kills came at no time that matters"


def start_consumers(streams: Streams, chance: random.Random, stack: ExitStack) -> dict[str, VerifiableConsumer]:
    """Start Kafka's own consumer on the topics of some queries until the stack is closed. Return them by topic."""
    topics = chance.sample(streams.exactly_once_topics, WITNESSED_QUERIES)
    return {
        topic: stack.enter_context(VerifiableConsumer(streams.kafka, topic, streams.folder / f"read {topic}"))
        for topic in topics
    }


@pytest.mark.needs("go")
def test_decision_log_of_killed_streams_is_linearizable(
    linearizability_checker: Path, recorded_histories: Path
) -> None:
    print(check_histories(linearizability_checker, *find_files(recorded_histories)))


@pytest.mark.needs("go")
@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_corrupted_history_of_killed_streams_is_found(
    corrupt: Callable[[list[Event]], None], linearizability_checker: Path, recorded_histories: Path, tmp_path: Path
) -> None:
    events = read_events(find_files(recorded_histories))
    history_and_prefix = itemgetter("history", "prefix")
    one_query = [event for event in events if history_and_prefix(event) == history_and_prefix(events[0])]
    assert_corruption_is_found(linearizability_checker, one_query, corrupt, tmp_path / "corrupted.jsonl")


def kill_driver(streams: Streams, driver: DriverProcess, kill: Kill, chance: random.Random) -> str:
    """Start the queries, and kill the driver. Return a description of the kill, or ENDED if the driver ended before."""
    try:
        streams.begin(driver)
        # An aimed kill waits for all queries. A random kill may come before some queries have begun.
        streams.wait_for_progress(driver, chance.choice([any, all]) if kill == Kill() else all)
        description = f"with the {streams.kill_broker(chance)}, " if kill.with_broker else ""
        if kill.places:
            description += ", ".join(kill.places)
            try:
                streams.stop(driver, kill.places)
                if kill.with_rows_in_doubt:
                    description += ", with rows in doubt"
                    streams.wait_for_rows_in_doubt(driver)
            except DriverEndedError:
                return ENDED
        else:
            description += "at random"
            time.sleep(chance.uniform(0.0, RANDOM_SECONDS))
    finally:
        streams.kill(driver)
    return description


def plan_kills(chance: random.Random) -> list[Kill]:
    # The places in tasks are spread over the kills, since a stopped task occupies a core.
    places = chance.sample(PLACES_IN_TASKS, len(PLACES_IN_TASKS)) + chance.sample(PLACES, len(PLACES))
    kills = [Kill(tuple(places[first::AIMED_KILLS])) for first in range(AIMED_KILLS)] + [Kill()] * RANDOM_KILLS
    # A stopped task occupies one of two cores. The last aimed kill stops at most one, and so can wait for rows.
    kills[AIMED_KILLS - 1] = replace(kills[AIMED_KILLS - 1], with_rows_in_doubt=True)
    for number in chance.sample(range(len(kills)), BROKER_RESTARTS):
        kills[number] = replace(kills[number], with_broker=True)
    chance.shuffle(kills)
    return kills


def check_topics(streams: Streams, consumers: Mapping[str, VerifiableConsumer]) -> int:
    """Check the topics of all queries, and return the number of duplicates of the at-least-once query.

    Exactly-once topics must contain each row once, also for Kafka's own clients. The at-least-once topic must not lack
    a row, and may have duplicates only of rows in micro-batches that were run again.
    """
    duplicate_count = 0
    for topic, guarantee in streams.topics.items():
        batches = find_newest_batch_id(streams.folder / topic / "commits") + 1
        records = read_topic(streams.kafka.bootstrap(), topic)
        anomalies = find_row_anomalies(records, batches, ROWS_PER_BATCH)
        if guarantee == "at-least-once":
            duplicate_count += sum(anomaly.kind is Kind.DUPLICATE for anomaly in anomalies)
            anomalies = [anomaly for anomaly in anomalies if anomaly.kind is Kind.LOST]
            count = Counter(int(record.value or b"") for record in records)
            assert {row // ROWS_PER_BATCH for row, times in count.items() if times > 1} <= streams.rerun_batches
        assert not anomalies, f"{topic} ({guarantee}), {len(anomalies)} anomalies: {anomalies[0]}"
        if topic in consumers:
            consumers[topic].check(records)
            folder = streams.folder / f"copy {topic}"
            with TransactionalMessageCopier(streams.kafka, topic, PARTITIONS, folder) as copier:
                copier.check(records)
    return duplicate_count
