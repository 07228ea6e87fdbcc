"""Some runs of the schedule explorer, and its detection of removed rules and leaks."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending import idempotence
from spark_kafka_sink.producer.sending.partition_states import PartitionState
from tests.producer.explorer import Run, explore, main


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("spark_kafka_sink").setLevel(logging.ERROR)
    yield
    logging.getLogger("spark_kafka_sink").setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(15))
def test_explored_faults_lose_duplicate_and_reorder_nothing_acknowledged(seed: int) -> None:
    """Each seed is a separate test, so a failure names the seed for `python -m tests.producer.explorer --seed`."""
    explore(seed)


def record_requests(seed: int) -> list[tuple[float, int, int]]:
    """Return the time, node and size of each request of a run."""
    run = Run(seed)
    run.run()
    return [(time_ms, node, len(frame)) for time_ms, node, frame in run.cluster.requests]


@pytest.mark.parametrize("seed", range(100, 102))
def test_seed_reproduces_the_same_run(seed: int) -> None:
    assert record_requests(seed) == record_requests(seed)


def no_rule_1(
    state: PartitionState, connection: NodeApiVersions | None, topic_id: UUID | None, unix_time_ms: float
) -> bool:
    return True


def no_rule_2(state: PartitionState, leader_id: int, max_in_flight: int) -> bool:
    return True


def no_rule_3(state: PartitionState) -> bool:
    return state.gap_start is not None


def never_stored(state: PartitionState, batch: ProducerBatch) -> bool:
    return False


@pytest.mark.parametrize(
    ("rules", "seeds", "harm"),
    [
        ({"can_pipeline": no_rule_1}, (8, 23), "out of order"),
        ({"can_send_to": no_rule_2}, (49, 236, 237), "out of order"),
        ({"can_restart_sequences": no_rule_3, "is_possibly_stored": never_stored}, (10, 137, 143), "doubled"),
    ],
    ids=["1", "2", "3"],
)
def test_explorer_detects_removed_rule(
    rules: dict[str, Callable[..., bool]], seeds: tuple[int, ...], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 2 alone keeps the order of a producer without idempotence; with it, rule 1 does so as well.

    A change of the producer can change the run of a seed, so one of several seeds must detect the removal.
    """
    with monkeypatch.context() as patch:
        for rule, without in rules.items():
            patch.setattr(idempotence, rule, without)
        assert any(": violated: " in find_fault(seed) for seed in seeds), "the states of the partitions do not show it"
        patch.setattr(Run, "check_partitions", lambda run: None)
        detecting_seed = next((seed for seed in seeds if harm in find_fault(seed)), None)
    assert detecting_seed is not None
    explore(detecting_seed)


def test_explorer_detects_pipelining_of_records_with_old_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(idempotence, "MAX_AGE_MS", 10**15)
        assert "out of order" in find_fault(352)
    explore(352)


def find_fault(seed: int) -> str:
    try:
        explore(seed)
    except AssertionError as error:
        return str(error)
    return ""


def test_explorer_prints_failing_seed_that_reproduces_the_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(idempotence, "can_pipeline", no_rule_1)
    monkeypatch.setattr(Run, "check_partitions", lambda run: None)
    monkeypatch.setattr(sys, "argv", ["explorer", "--seeds", "7:9"])
    assert main() == 1
    assert "seed 8 fails" in capfd.readouterr().out
    monkeypatch.setattr(sys, "argv", ["explorer", "--seed", "8"])
    assert main() == 1
    assert "out of order" in capfd.readouterr().err


def test_explorer_detects_leaked_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    left = threading.Thread(target=end.wait)
    monkeypatch.setattr(Run, "check", lambda run: left.start())
    try:
        with pytest.raises(AssertionError, match="leaked threads or descriptors"):
            explore(0)
    finally:
        end.set()
        left.join()


def test_explorer_detects_leaked_descriptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left: list[int] = []
    monkeypatch.setattr(Run, "check", lambda run: left.append(os.open(tmp_path, os.O_RDONLY)))
    try:
        with pytest.raises(AssertionError, match="leaked threads or descriptors"):
            explore(0)
    finally:
        os.close(left[0])
