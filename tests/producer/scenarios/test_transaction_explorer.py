"""Some runs of the transaction explorer, and its detection of removed rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.requests.transactions import CommitOffsets, EndTransaction
from tests.producer.transaction_explorer import TransactionRun, explore


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("spark_kafka_sink").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("spark_kafka_sink").setLevel(logging.NOTSET)


@pytest.mark.parametrize("seed", range(10))
def test_explored_faults_keep_transactions_atomic(seed: int) -> None:
    """Each seed is a separate test, so a failure names the seed that the transaction explorer can replay."""
    explore(seed)


@pytest.mark.parametrize("seed", [100])
def test_seed_reproduces_the_same_run(seed: int) -> None:
    def requests() -> list[tuple[float, int, int]]:
        run = TransactionRun(seed)
        run.run()
        return [(time_ms, node, len(frame)) for time_ms, node, frame in run.cluster.requests]

    assert requests() == requests()


def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request the end of the transaction while records are in flight."""
    monkeypatch.setattr(Sender, "_is_flushed", lambda sender: True)


def ignore_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a transaction although one of its records has failed."""
    monkeypatch.setattr(TransactionManager, "handle_failed_batch", lambda manager, error, **facts: None)


def keep_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the epoch although an earlier request may be executed late, during the next transaction."""
    for request in (CommitOffsets, EndTransaction):
        monkeypatch.setattr(request, "affects_next_transaction_if_late", False)


def abort_after_end_txn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a transaction abortable if a second thread's record fails after its commit was sent."""

    def handle_failed_batch(
        manager: TransactionManager, error: KafkaSinkError, *, has_sequence: bool, in_doubt: bool = False
    ) -> None:
        if manager._transaction is not None:
            manager._transaction.needs_new_epoch |= has_sequence
            manager._transition_to_abortable_error(error)

    monkeypatch.setattr(TransactionManager, "handle_failed_batch", handle_failed_batch)


@pytest.mark.parametrize(
    ("without_rule", "seeds", "harm"),
    [
        (end_at_once, (4, 5, 21), "without"),
        (ignore_failures, (11, 38, 131), "without"),
        (keep_the_epoch, (330, 392, 1080), "aborted read"),
        (abort_after_end_txn, (1, 55, 98), "aborted read"),
    ],
)
def test_explorer_detects_removed_rule(
    without_rule: Callable[[pytest.MonkeyPatch], None],
    seeds: tuple[int, ...],
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the producer can change the run of a seed, so one of several seeds must detect the removal."""
    with monkeypatch.context() as patch:
        without_rule(patch)
        detecting_seed = next((seed for seed in seeds if harm in find_fault(seed)), None)
    assert detecting_seed is not None
    explore(detecting_seed)


def find_fault(seed: int) -> str:
    try:
        explore(seed)
    except Exception as error:
        return str(error)
    return ""
