"""History finds each kind of anomaly, and none in a correct history."""

from __future__ import annotations

import pytest

from tests.history import History, Kind, Outcome, Place, Write, check_batches, offsets_anomalies


def places(*values: str, partition: int = 0) -> list[Place]:
    return [(partition, value.encode()) for value in values]


def history(*outcomes: Outcome) -> History:
    """Return two batches with two tasks and one task. The second task of the first batch has two attempts."""
    first, second, second_attempt, next_batch = outcomes
    return History(
        [
            Write("task 0", places("a1", "a2"), first, unit="0/0", batch=0, writer="x"),
            Write("task 1", places("b1"), second, unit="0/1", batch=0),
            Write("task 1 again", places("c1"), second_attempt, unit="0/1", batch=0),
            Write("task 0", places("d1"), next_batch, unit="1/0", batch=1, writer="x"),
        ],
        {1: frozenset({"1/0"})},
    )


CORRECT_OUTCOMES = (Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED, Outcome.COMMITTED)


def kinds(seen: list[str], outcomes: tuple[Outcome, ...] = CORRECT_OUTCOMES) -> set[Kind]:
    return {anomaly.kind for anomaly in history(*outcomes).anomalies({0: [value.encode() for value in seen]})}


def test_finds_no_anomaly_in_correct_history() -> None:
    assert kinds(["a1", "a2", "b1", "d1"]) == set()
    history(*CORRECT_OUTCOMES).check({0: [b"a1", b"a2", b"b1", b"d1"]})


def test_accepts_unknown_outcome_read_or_not() -> None:
    unknown = (Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.OPEN, Outcome.COMMITTED)
    assert kinds(["d1"], unknown) == set()
    assert kinds(["a1", "a2", "b1", "d1"], unknown) == set()


def test_unread_committed_value_is_lost() -> None:
    assert kinds(["b1", "a1", "a2"]) == {Kind.LOST}


def test_value_read_twice_is_a_duplicate() -> None:
    assert kinds(["a1", "a2", "b1", "d1", "b1"]) == {Kind.DUPLICATE}


def test_two_attempts_of_one_task_are_a_duplicate() -> None:
    both = (Outcome.COMMITTED, Outcome.COMMITTED, Outcome.COMMITTED, Outcome.COMMITTED)
    assert kinds(["a1", "a2", "b1", "c1", "d1"], both) == {Kind.DUPLICATE}


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.OPEN])
def test_reading_uncommitted_value_is_an_aborted_read(outcome: Outcome) -> None:
    found = kinds(["a1", "a2", "c1", "d1"], (Outcome.COMMITTED, Outcome.OPEN, outcome, Outcome.COMMITTED))
    assert found == {Kind.ABORTED_READ}


def test_reading_unwritten_value_is_an_aborted_read() -> None:
    assert kinds(["a1", "a2", "b1", "d1", "e1"]) == {Kind.ABORTED_READ}


def test_part_of_a_transaction_is_a_torn_batch() -> None:
    assert kinds(["a1", "b1", "d1"]) == {Kind.TORN_BATCH}


def test_batch_without_one_of_its_tasks_is_torn() -> None:
    unknown = (Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.ABORTED, Outcome.COMMITTED)
    assert kinds(["a1", "a2", "d1"], unknown) == {Kind.TORN_BATCH}


def test_values_of_one_writer_in_other_order_are_out_of_order() -> None:
    assert kinds(["a2", "a1", "b1", "d1"]) == {Kind.OUT_OF_ORDER}
    assert kinds(["d1", "a1", "a2", "b1"]) == {Kind.OUT_OF_ORDER}, "also across transactions"
    assert kinds(["b1", "a1", "a2", "d1"]) == set(), "different writers have no order"


def test_group_offset_must_match_last_read_transaction() -> None:
    first = Write("first", places("a"), Outcome.COMMITTED, offset=5)
    second = Write("second", places("b"), Outcome.UNKNOWN, offset=7)
    aborted = Write("third", places("c"), Outcome.ABORTED, offset=9)
    writes = [first, second, aborted]
    assert not offsets_anomalies(writes, {(0, b"a")}, 5)
    assert not offsets_anomalies(writes, {(0, b"a"), (0, b"b")}, 7)
    for seen, offset in (({(0, b"a")}, 7), ({(0, b"a"), (0, b"b")}, 5), ({(0, b"a")}, 9), ({(0, b"a")}, None)):
        (anomaly,) = offsets_anomalies(writes, set(seen), offset)
        assert anomaly.kind is Kind.INCONSISTENT_OFFSETS


def test_accepts_either_offset_for_empty_transaction_with_unknown_outcome() -> None:
    writes = [Write("first", places("a"), Outcome.COMMITTED, offset=5), Write("empty", [], Outcome.UNKNOWN, offset=7)]
    assert not offsets_anomalies(writes, {(0, b"a")}, 5)
    assert not offsets_anomalies(writes, {(0, b"a")}, 7)


def test_committed_batch_may_come_from_any_attempt() -> None:
    attempts = [Write(name, places(name), Outcome.UNKNOWN, unit="0/0", batch=0) for name in ("a", "b")]
    history = History(attempts, committed=frozenset({0}))

    def find_kinds(*values: str) -> list[Kind]:
        return [anomaly.kind for anomaly in history.anomalies({0: [value.encode() for value in values]})]

    assert find_kinds("a") == find_kinds("b") == []
    assert find_kinds() == [Kind.LOST]
    assert find_kinds("a", "b") == [Kind.DUPLICATE]
    assert [anomaly.kind for anomaly in History(committed=frozenset({0})).anomalies({})] == [Kind.LOST]


def test_check_batches_finds_every_kind_of_anomaly() -> None:
    batches = {"0": [b"a", b"b"], "1": [b"c"]}
    check_batches(batches, [b"c", b"b", b"a"])
    for seen, kind in (
        ([b"a", b"b"], Kind.LOST),
        ([b"a", b"b", b"c", b"c"], Kind.DUPLICATE),
        ([b"a", b"c"], Kind.TORN_BATCH),
        ([b"a", b"b", b"c", b"d"], Kind.ABORTED_READ),
    ):
        with pytest.raises(AssertionError, match=f"^{kind.value}: "):
            check_batches(batches, seen)


def test_failed_check_describes_the_anomaly() -> None:
    with pytest.raises(AssertionError, match=r"lost: \[b'd1'\] of task 0 is not read, and it was committed"):
        history(*CORRECT_OUTCOMES).check({0: [b"a1", b"a2", b"b1"]})
