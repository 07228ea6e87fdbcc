"""Drivers that are stopped (SIGSTOP) and go on after their successor has decided: they change nothing, and say why.

On three real nodes. With SOAK=1 there are more rounds, and transactions of both versions.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.artifacts import ROOT
from integration.support.driver_process import newest
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.plain_driver import REFUSED, value_of
from integration.support.processes import stop
from tests.history import History, Outcome, Write
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
ROUNDS = 30 if SOAK else 2
VERSIONS = (1, 2) if SOAK else (2,)
PAUSE_SECONDS_MAX = 0.2
BROKERS = 3


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

    def __init__(self, cluster: KafkaCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.topic = create_topic(cluster.bootstrap(), partitions=2, replicas=BROKERS)
        self.started: list[subprocess.Popen[bytes]] = []
        for each in ("commits", "attempts"):
            (folder / each).mkdir()

    def start(self) -> subprocess.Popen[bytes]:
        name = f"driver-{len(self.started)}"
        command = [sys.executable, "-m", "integration.support.plain_driver"]
        command += [self.cluster.bootstrap(), self.topic, str(self.folder), name]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started.append(subprocess.Popen(command, cwd=ROOT, stderr=log))
        return self.started[-1]

    def wait_for_batches(self, count: int, by: subprocess.Popen[bytes]) -> None:
        wanted = newest(self.folder / "commits") + count
        wait_until(lambda: newest(self.folder / "commits") >= wanted or by.poll() is not None)
        assert by.poll() is None, f"a driver has ended: {self.said()}"

    def said(self) -> dict[str, str]:
        return {each.stem: each.read_text() for each in sorted(self.folder.glob("*.log"))}

    def kill(self) -> None:
        for each in self.started:
            each.kill()
            each.wait()

    def check(self) -> int:
        """Each batch is seen once and whole, of one driver. Returns how many there are."""
        batches = newest(self.folder / "commits") + 1
        seen: dict[int, list[bytes]] = {}
        for record in read_topic(self.cluster.bootstrap(), self.topic):
            seen.setdefault(record.partition, []).append(record.value or b"")
        history = History()
        for each in (self.folder / "attempts").iterdir():
            number, name = each.name.split()
            for partition in range(2):
                unit = f"task {partition} of batch {number}"
                places = [(partition, value_of(int(number), partition, name).encode())]
                history.writes.append(Write(f"{unit} by {name}", places, Outcome.UNKNOWN, unit, f"batch {number}"))
        history.committed = frozenset(f"batch {number}" for number in range(batches))
        history.check(seen)
        return batches


def test_a_driver_that_was_stopped_and_goes_on_after_its_successor_has_decided_changes_nothing(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    drivers = Drivers(cluster, tmp_path)
    working = drivers.start()
    try:
        for _ in range(ROUNDS):
            drivers.wait_for_batches(2, working)
            time.sleep(chance.uniform(0.0, PAUSE_SECONDS_MAX))
            stop(working)
            stopped, working = working, drivers.start()
            drivers.wait_for_batches(2, working)
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(PATIENCE_SECONDS) == REFUSED, f"seed {seed}: see {tmp_path}"
        drivers.wait_for_batches(1, working)
        (tmp_path / "stop").touch()
        assert working.wait(PATIENCE_SECONDS) == 0
    finally:
        drivers.kill()
    said = drivers.said()
    of_tasks = ("ProducerFencedError", "INVALID_PRODUCER_EPOCH")  # one that was stopped in a task fails there
    for number in range(ROUNDS):
        assert any(each in said[f"driver-{number}"] for each in ("newer driver", *of_tasks)), said
    print(f"{ROUNDS} drivers stopped and resumed, {drivers.check()} batches, each once")
