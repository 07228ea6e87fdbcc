"""Drivers that are suspended (SIGSTOP) and resume after a newer driver has taken over, on three real brokers.

A resumed driver must change nothing, and end with an error that names the takeover. Other tests suspend or kill drivers
while they commit the transactions of 300 tasks. SOAK=1 adds rounds, transaction version 1, and suspended coordinators.
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
from integration.support.driver_process import find_newest_batch_id
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.linearizability import check_histories, find_files
from integration.support.plain_driver import PARTITIONS, REJECTED_STATUS, format_value
from integration.support.processes import stop
from integration.support.transactional_writer import find_coordinator
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id, parse_task_attempt
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
MAX_PAUSE_SECONDS = 0.2
BROKERS = 3
FEW_TASKS, MANY_TASKS = 2, 300
"""Numbers of tasks of a batch."""
MANY_TASKS_ROUNDS = 12 if SOAK else 2
MAX_FAILED_DRIVERS = 5
"""Maximum number of consecutive drivers that may time out while a broker is suspended."""
MAX_COMMIT_SECONDS = 1.5
"""Approximate time in which a busy machine decides and commits 300 transactions."""


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A cluster of three brokers with transactions of the version in the parameter."""
    if request.param == 2:
        yield request.getfixturevalue("kafka3")
        return
    folder = tmp_path_factory.mktemp("kafka-paused") / "cluster"
    with KafkaCluster(folder, brokers=BROKERS, features=("transaction.version=1",)) as cluster:
        yield cluster


class Drivers:
    """The consecutive drivers of one query. The drivers record their commits, attempts and logs in `folder`."""

    def __init__(self, cluster: KafkaCluster, folder: Path, history: Path, tasks: int = FEW_TASKS) -> None:
        """`history`: the folder for the history of the decision log."""
        self.cluster = cluster
        self.folder = folder
        self.tasks = tasks
        self._environment = os.environ | {HISTORY_FOLDER: str(history)}
        self.topic = create_topic(cluster.bootstrap(), partitions=PARTITIONS, replicas=BROKERS)
        self.started: list[subprocess.Popen[bytes]] = []
        for name in ("commits", "attempts"):
            (folder / name).mkdir()

    def start(self) -> subprocess.Popen[bytes]:
        name = f"driver-{len(self.started)}"
        command = [sys.executable, "-m", "integration.support.plain_driver"]
        command += [self.cluster.bootstrap(), self.topic, str(self.folder), name, str(self.tasks)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started.append(subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=log))
        return self.started[-1]

    def wait_for_batches(self, count: int, driver: subprocess.Popen[bytes], *, may_end: bool = False) -> None:
        """Wait until the driver has committed `count` more batches.

        `may_end`: the driver may end after the batches, or before them, because a broker is suspended. The other
        brokers may then be unable to write to the topic of transaction states until the driver times out. In that case
        the caller must start a new driver.
        """
        last_batch = find_newest_batch_id(self.folder / "commits") + count
        wait_until(lambda: find_newest_batch_id(self.folder / "commits") >= last_batch or driver.poll() is not None)
        assert may_end or driver.poll() is None, f"a driver has ended: {self.read_logs()}"

    def wait_for_commit(
        self, driver: subprocess.Popen[bytes], *, may_time_out: bool = False
    ) -> subprocess.Popen[bytes]:
        """Wait until all tasks of the next batch have written and the driver begins to decide. Return the driver.

        With `may_time_out`, a driver that has timed out is replaced by a new one, which is returned.
        """
        previous_attempts = self._list_attempts()
        for _ in range(MAX_FAILED_DRIVERS):
            wait_until(partial(self._has_written_or_ended, previous_attempts, driver))
            if driver.poll() is None:
                return driver
            assert may_time_out, f"a driver has ended: {self.read_logs()}"
            assert driver.returncode == REJECTED_STATUS, f"a driver has failed: {self.read_logs()}"
            driver = self.start()
        raise AssertionError(f"{MAX_FAILED_DRIVERS} drivers have timed out: {self.read_logs()}")

    def _has_written_or_ended(self, previous_attempts: set[Path], driver: subprocess.Popen[bytes]) -> bool:
        return self._list_attempts() > previous_attempts or driver.poll() is not None

    def _list_attempts(self) -> set[Path]:
        return set((self.folder / "attempts").iterdir())

    def count_open_transactions(self) -> int:
        """Return the number of open transactions of tasks."""
        config = ProducerConfig.parse({"bootstrap.servers": self.cluster.bootstrap()}).client_config()
        with create_client(config) as client:
            return sum(
                parse_task_attempt(self.topic, name) is not None for name in list_transactional_ids(client, ONGOING)
            )

    def read_logs(self) -> dict[str, str]:
        """Return the log of each driver by the driver's name."""
        return {path.stem: path.read_text() for path in sorted(self.folder.glob("*.log"))}

    def read_log(self, driver: subprocess.Popen[bytes]) -> str:
        return self.read_logs()[f"driver-{self.started.index(driver)}"]

    def kill_all(self) -> None:
        for driver in self.started:
            driver.kill()
            driver.wait()

    def check(self) -> int:
        """Check that each batch is visible exactly once and complete, from one driver. Return the number of batches."""
        batches = find_newest_batch_id(self.folder / "commits") + 1
        values_by_partition: dict[int, list[bytes]] = {}
        for record in read_topic(self.cluster.bootstrap(), self.topic):
            values_by_partition.setdefault(record.partition, []).append(record.value or b"")
        history = History()
        for path in self._list_attempts():
            number, name = path.name.split()
            for task in range(self.tasks):
                unit = f"task {task} of batch {number}"
                rows = [(task % PARTITIONS, format_value(int(number), task, name).encode())]
                history.writes.append(Write(f"{unit} by {name}", rows, Outcome.UNKNOWN, unit, f"batch {number}"))
        history.committed = frozenset(f"batch {number}" for number in range(batches))
        history.check(values_by_partition)
        return batches


def test_driver_resumed_after_decision_of_newer_driver_changes_nothing(
    cluster: KafkaCluster, tmp_path: Path, recorded_histories: Path
) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    drivers = Drivers(cluster, tmp_path, recorded_histories / tmp_path.name)
    driver = drivers.start()
    try:
        for _ in range(ROUNDS):
            drivers.wait_for_batches(2, driver)
            time.sleep(rng.uniform(0.0, MAX_PAUSE_SECONDS))
            stop(driver)
            suspended_driver, driver = driver, drivers.start()
            drivers.wait_for_batches(2, driver)
            suspended_driver.send_signal(signal.SIGCONT)
            assert suspended_driver.wait(WAIT_TIMEOUT_SECONDS) == REJECTED_STATUS, f"seed {seed}: see {tmp_path}"
        drivers.wait_for_batches(1, driver)
        (tmp_path / "stop").touch()
        assert driver.wait(WAIT_TIMEOUT_SECONDS) == 0
    finally:
        drivers.kill_all()
    logs = drivers.read_logs()
    for number in range(ROUNDS):
        # A driver that was suspended while its tasks wrote has a task that "came too late".
        assert "has taken over" in logs[f"driver-{number}"], logs
    print(f"{ROUNDS} drivers suspended and resumed; {drivers.check()} batches, each written once")


def test_batches_are_read_once_if_drivers_stop_during_commit_of_300_transactions(
    cluster: KafkaCluster, tmp_path: Path, recorded_histories: Path
) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    drivers = Drivers(cluster, tmp_path, recorded_histories / tmp_path.name, MANY_TASKS)
    driver, interrupted_commits = drivers.start(), 0
    try:
        for number in range(MANY_TASKS_ROUNDS):
            suspends_broker = SOAK and number % 3 == 0
            with suspended_coordinator(drivers) if suspends_broker else nullcontext():
                driver = drivers.wait_for_commit(driver, may_time_out=suspends_broker)
                if suspends_broker:
                    time.sleep(rng.uniform(0.0, MAX_COMMIT_SECONDS))
                else:
                    wait_until(lambda: drivers.count_open_transactions() < MANY_TASKS)
                suspends_driver = number % 2 == 1
                stop(driver) if suspends_driver else driver.kill()
                interrupted_commits += not suspends_broker and 0 < drivers.count_open_transactions() < MANY_TASKS
                previous_driver = driver
                if number == MANY_TASKS_ROUNDS - 1:
                    (tmp_path / "stop").touch()  # the last driver ends after its first batch
                driver = drivers.start()
                drivers.wait_for_batches(1, driver, may_end=suspends_broker or number == MANY_TASKS_ROUNDS - 1)
            if suspends_broker and driver.poll() == REJECTED_STATUS:
                driver = drivers.start()
                drivers.wait_for_batches(1, driver)
            if suspends_driver:
                previous_driver.send_signal(signal.SIGCONT)
                assert previous_driver.wait(WAIT_TIMEOUT_SECONDS) == REJECTED_STATUS, f"seed {seed}: see {tmp_path}"
                if not suspends_broker:  # otherwise the driver may have timed out before a broker rejected it
                    assert "newer driver has taken over" in drivers.read_log(previous_driver), (
                        f"seed {seed}: {drivers.read_logs()}"
                    )
        assert driver.wait(WAIT_TIMEOUT_SECONDS) == 0, f"seed {seed}: {drivers.read_logs()}"
    finally:
        drivers.kill_all()
    print(
        f"{MANY_TASKS_ROUNDS} drivers of {MANY_TASKS} tasks killed or suspended, {interrupted_commits} of them during "
        f"their commit; {drivers.check()} batches, each written once"
    )
    assert interrupted_commits, "no driver was interrupted during its commit"


@pytest.mark.needs("go")
def test_decision_log_of_suspended_drivers_is_linearizable(
    linearizability_checker: Path, recorded_histories: Path
) -> None:
    print(check_histories(linearizability_checker, *find_files(recorded_histories)))


@contextmanager
def suspended_coordinator(drivers: Drivers) -> Iterator[None]:
    """Suspend the coordinator of the drivers' transactional id during the block."""
    node = find_coordinator(drivers.cluster, build_driver_id(drivers.topic))
    drivers.cluster.pause(node)
    try:
        yield
    finally:
        drivers.cluster.resume(node)
        drivers.cluster.wait_until_ready()
