"""Drivers that are stopped (SIGSTOP) and go on after their successor has decided: they change nothing, and say why. So
it is with drivers that are stopped, or killed, while they commit the transactions of 300 tasks.

On three real nodes. With SOAK=1 there are more rounds, transactions of both versions, and coordinators that stand still
beside a driver that is stopped or killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from integration.support.artifacts import ROOT
from integration.support.driver_process import newest
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.linearizability import check_histories, find_files
from integration.support.plain_driver import PARTITIONS, REFUSED, value_of
from integration.support.processes import stop
from integration.support.transactional_writer import coordinator_of
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.exactly_once.transaction_names import driver_id, parse_task_attempt
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.transaction_admin import list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from tests.exactly_once.log_history import HISTORY_FOLDER
from tests.history import History, Outcome, Write
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
ROUNDS = 30 if SOAK else 2
VERSIONS = (1, 2) if SOAK else (2,)
PAUSE_SECONDS_MAX = 0.2
BROKERS = 3
FEW, MANY = 2, 300
"""Tasks of a batch."""
MANY_ROUNDS = 12 if SOAK else 2
GIVE_UPS_MAX = 5
"""Of drivers one after the other, while a broker stands still."""
COMMIT_SECONDS_MAX = 1.5
"""Of 300 transactions: about as long as a busy machine takes to decide and to end them."""


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """With transactions of this version."""
    if request.param == 2:
        yield request.getfixturevalue("kafka3")
        return
    folder = tmp_path_factory.mktemp("kafka-paused") / "cluster"
    with KafkaCluster(folder, brokers=BROKERS, features=("transaction.version=1",)) as cluster:
        yield cluster


class Drivers:
    """The drivers of one query, one after the other, and what they have left in their folder."""

    def __init__(self, cluster: KafkaCluster, folder: Path, history: Path, tasks: int = FEW) -> None:
        """`history`: the folder for the history of the decision log."""
        self.cluster = cluster
        self.folder = folder
        self.tasks = tasks
        self._environment = os.environ | {HISTORY_FOLDER: str(history)}
        self.topic = create_topic(cluster.bootstrap(), partitions=PARTITIONS, replicas=BROKERS)
        self.started: list[subprocess.Popen[bytes]] = []
        for each in ("commits", "attempts"):
            (folder / each).mkdir()

    def start(self) -> subprocess.Popen[bytes]:
        name = f"driver-{len(self.started)}"
        command = [sys.executable, "-m", "integration.support.plain_driver"]
        command += [self.cluster.bootstrap(), self.topic, str(self.folder), name, str(self.tasks)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started.append(subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=log))
        return self.started[-1]

    def wait_for_batches(self, count: int, by: subprocess.Popen[bytes], *, may_give_up: bool = False) -> None:
        """`may_give_up`: where a broker stands still, the others may be unable to write their log of transactions for
        longer than a driver waits. Then it ends with an error, and is to be started again.
        """
        wanted = newest(self.folder / "commits") + count
        wait_until(lambda: newest(self.folder / "commits") >= wanted or by.poll() is not None)
        assert may_give_up or by.poll() is None, f"a driver has ended: {self.said()}"

    def wait_for_commit(self, by: subprocess.Popen[bytes], *, may_give_up: bool = False) -> subprocess.Popen[bytes]:
        """All tasks of the next batch have written, and its driver begins to decide. Return this driver: one that has
        given up is started again.
        """
        before = self._attempts()
        for _ in range(GIVE_UPS_MAX):
            wait_until(partial(self._has_written_or_ended, before, by))
            if by.poll() is None:
                return by
            assert may_give_up, f"a driver has ended: {self.said()}"
            assert by.returncode == REFUSED, f"a driver has failed: {self.said()}"
            by = self.start()
        raise AssertionError(f"{GIVE_UPS_MAX} drivers have given up: {self.said()}")

    def _has_written_or_ended(self, before: set[Path], by: subprocess.Popen[bytes]) -> bool:
        return self._attempts() > before or by.poll() is not None

    def _attempts(self) -> set[Path]:
        return set((self.folder / "attempts").iterdir())

    def open(self) -> int:
        """How many transactions of tasks are open."""
        config = ProducerConfig.parse({"bootstrap.servers": self.cluster.bootstrap()}).client_config()
        with new_client(config) as client:
            return sum(
                parse_task_attempt(self.topic, name) is not None for name in list_transactional_ids(client, ONGOING)
            )

    def said(self) -> dict[str, str]:
        return {each.stem: each.read_text() for each in sorted(self.folder.glob("*.log"))}

    def said_by(self, driver: subprocess.Popen[bytes]) -> str:
        return self.said()[f"driver-{self.started.index(driver)}"]

    def kill(self) -> None:
        for each in self.started:
            each.kill()
            each.wait()

    def check(self) -> int:
        """Each batch is seen once and whole, of one driver. Return how many there are."""
        batches = newest(self.folder / "commits") + 1
        seen: dict[int, list[bytes]] = {}
        for record in read_topic(self.cluster.bootstrap(), self.topic):
            seen.setdefault(record.partition, []).append(record.value or b"")
        history = History()
        for each in self._attempts():
            number, name = each.name.split()
            for task in range(self.tasks):
                unit = f"task {task} of batch {number}"
                places = [(task % PARTITIONS, value_of(int(number), task, name).encode())]
                history.writes.append(Write(f"{unit} by {name}", places, Outcome.UNKNOWN, unit, f"batch {number}"))
        history.committed = frozenset(f"batch {number}" for number in range(batches))
        history.check(seen)
        return batches


def test_driver_resumed_after_decision_of_newer_driver_changes_nothing(
    cluster: KafkaCluster, tmp_path: Path, recorded_histories: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    drivers = Drivers(cluster, tmp_path, recorded_histories / tmp_path.name)
    working = drivers.start()
    try:
        for _ in range(ROUNDS):
            drivers.wait_for_batches(2, working)
            time.sleep(chance.uniform(0.0, PAUSE_SECONDS_MAX))
            stop(working)
            stopped, working = working, drivers.start()
            drivers.wait_for_batches(2, working)
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(WAIT_TIMEOUT_SECONDS) == REFUSED, f"seed {seed}: see {tmp_path}"
        drivers.wait_for_batches(1, working)
        (tmp_path / "stop").touch()
        assert working.wait(WAIT_TIMEOUT_SECONDS) == 0
    finally:
        drivers.kill()
    said = drivers.said()
    for number in range(ROUNDS):
        assert "newer driver has taken over" in said[f"driver-{number}"], said
    print(f"{ROUNDS} drivers stopped and resumed, {drivers.check()} batches, each once")


def test_batches_are_read_once_if_drivers_stop_during_commit_of_300_transactions(
    cluster: KafkaCluster, tmp_path: Path, recorded_histories: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    drivers = Drivers(cluster, tmp_path, recorded_histories / tmp_path.name, MANY)
    working, half_way = drivers.start(), 0
    try:
        for number in range(MANY_ROUNDS):
            stands_still = SOAK and number % 3 == 0
            with one_that_stands_still(drivers) if stands_still else nullcontext():
                working = drivers.wait_for_commit(working, may_give_up=stands_still)
                if stands_still:
                    time.sleep(chance.uniform(0.0, COMMIT_SECONDS_MAX))
                else:
                    wait_until(lambda: drivers.open() < MANY)
                is_stopped = number % 2 == 1
                stop(working) if is_stopped else working.kill()
                half_way += not stands_still and 0 < drivers.open() < MANY
                before, working = working, drivers.start()
                drivers.wait_for_batches(1, working, may_give_up=stands_still)
            if working.poll() is not None:
                working = drivers.start()
                drivers.wait_for_batches(1, working)
            if is_stopped:
                before.send_signal(signal.SIGCONT)
                assert before.wait(WAIT_TIMEOUT_SECONDS) == REFUSED, f"seed {seed}: see {tmp_path}"
                if not stands_still:  # else brokers may not have said why
                    assert "newer driver has taken over" in drivers.said_by(before), f"seed {seed}: {drivers.said()}"
        (tmp_path / "stop").touch()
        assert working.wait(WAIT_TIMEOUT_SECONDS) == 0, f"seed {seed}: {drivers.said()}"
    finally:
        drivers.kill()
    how = f"killed or stopped, {half_way} half-way"
    print(f"{MANY_ROUNDS} drivers of {MANY} tasks {how}, {drivers.check()} batches, each once")
    assert half_way, "none was in the middle of its commit"


@pytest.mark.needs("go")
def test_decision_log_of_suspended_drivers_is_linearizable(
    linearizability_checker: Path, recorded_histories: Path
) -> None:
    print(check_histories(linearizability_checker, *find_files(recorded_histories)))


@contextmanager
def one_that_stands_still(drivers: Drivers) -> Iterator[None]:
    """The coordinator of the drivers' id, while they work."""
    node = coordinator_of(drivers.cluster, driver_id(drivers.topic))
    drivers.cluster.pause(node)
    try:
        yield
    finally:
        drivers.cluster.resume(node)
        drivers.cluster.wait_until_ready()
