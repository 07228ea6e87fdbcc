"""The transition table allows exactly the listed transitions."""

from __future__ import annotations

import itertools

import pytest

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.transactions.states import TRANSITIONS, Operation, require_valid_transition
from tests.producer.transactions.transaction_cases import S

ALLOWED = {
    (S.INITIALIZING, S.UNINITIALIZED),
    (S.UNINITIALIZED, S.INITIALIZING),
    (S.READY, S.INITIALIZING),
    (S.PREPARED, S.INITIALIZING),
    (S.COMMITTING, S.INITIALIZING),
    (S.ABORTING, S.INITIALIZING),
    (S.INITIALIZING, S.READY),
    (S.COMMITTING, S.READY),
    (S.ABORTING, S.READY),
    (S.IN_TRANSACTION, S.READY),
    (S.READY, S.IN_TRANSACTION),
    (S.IN_TRANSACTION, S.PREPARED),
    (S.INITIALIZING, S.PREPARED),
    (S.IN_TRANSACTION, S.COMMITTING),
    (S.PREPARED, S.COMMITTING),
    (S.IN_TRANSACTION, S.ABORTING),
    (S.PREPARED, S.ABORTING),
    (S.ABORTABLE_ERROR, S.ABORTING),
    (S.IN_TRANSACTION, S.ABORTABLE_ERROR),
    (S.COMMITTING, S.ABORTABLE_ERROR),
    (S.INITIALIZING, S.ABORTABLE_ERROR),
    (S.ABORTABLE_ERROR, S.ABORTABLE_ERROR),
} | {(source, S.FATAL_ERROR) for source in S}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(S, S)))
def test_only_listed_transitions_are_valid(source: S, target: S) -> None:
    if (source, target) in ALLOWED:
        require_valid_transition(source, target, "x")
    else:
        with pytest.raises(IllegalStateError, match=f"x: invalid transition from '{source.value}' .* Call "):
            require_valid_transition(source, target, "x")


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(S)


def test_fatal_error_has_no_transitions() -> None:
    assert TRANSITIONS[S.FATAL_ERROR] == frozenset()


def test_reading_result_of_pending_operation_raises() -> None:
    operation = Operation("commit_transaction")
    with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) is not done yet"):
        operation.read_result()
    assert not operation.is_result_read
