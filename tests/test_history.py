"""The checker finds each kind of anomaly, and none where there is none."""

from __future__ import annotations

import pytest

from tests.history import History, Kind, Outcome, Place, Write, check_batches, offsets_anomalies


def places(*values: str, partition: int = 0) -> list[Place]:
    return [(partition, value.encode()) for value in values]


def history(*outcomes: Outcome) -> History:
    """Two batches of two tasks; the second task of the first one has two attempts."""
    first, second, again, other = outcomes
    return History(
        [
            Write("task 0", places("a1", "a2"), first, unit="0/0", batch=0, writer="x"),
            Write("task 1", places("b1"), second, unit="0/1", batch=0),
            Write("task 1 again", places("c1"), again, unit="0/1", batch=0),
            Write("task 0", places("d1"), other, unit="1/0", batch=1, writer="x"),
        ],
        {1: frozenset({"1/0"})},
    )


WELL = (Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED, Outcome.COMMITTED)


def kinds(seen: list[str], outcomes: tuple[Outcome, ...] = WELL) -> set[Kind]:
    return {each.kind for each in history(*outcomes).anomalies({0: [value.encode() for value in seen]})}


def test_where_all_is_well_there_is_no_anomaly() -> None:
    assert kinds(["a1", "a2", "b1", "d1"]) == set()
    history(*WELL).check({0: [b"a1", b"a2", b"b1", b"d1"]})


def test_what_has_no_outcome_may_be_seen_or_not() -> None:
    unknown = (Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.OPEN, Outcome.COMMITTED)
    assert kinds(["d1"], unknown) == set()
    assert kinds(["a1", "a2", "b1", "d1"], unknown) == set()


def test_a_committed_row_that_is_not_seen_is_lost() -> None:
    assert kinds(["b1", "a1", "a2"]) == {Kind.LOST}


def test_a_row_that_is_seen_twice_is_a_duplicate() -> None:
    assert kinds(["a1", "a2", "b1", "d1", "b1"]) == {Kind.DUPLICATE}


def test_two_attempts_of_one_task_that_are_both_seen_are_a_duplicate() -> None:
    both = (Outcome.COMMITTED, Outcome.COMMITTED, Outcome.COMMITTED, Outcome.COMMITTED)
    assert kinds(["a1", "a2", "b1", "c1", "d1"], both) == {Kind.DUPLICATE}


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.OPEN])
def test_a_row_that_was_not_committed_and_is_seen_is_an_aborted_read(outcome: Outcome) -> None:
    found = kinds(["a1", "a2", "c1", "d1"], (Outcome.COMMITTED, Outcome.OPEN, outcome, Outcome.COMMITTED))
    assert found == {Kind.ABORTED_READ}


def test_a_row_that_no_one_wrote_is_an_aborted_read() -> None:
    assert kinds(["a1", "a2", "b1", "d1", "e1"]) == {Kind.ABORTED_READ}


def test_a_part_of_a_transaction_is_a_torn_batch() -> None:
    assert kinds(["a1", "b1", "d1"]) == {Kind.TORN_BATCH}


def test_one_task_of_a_batch_without_the_other_is_a_torn_batch() -> None:
    unknown = (Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.ABORTED, Outcome.COMMITTED)
    assert kinds(["a1", "a2", "d1"], unknown) == {Kind.TORN_BATCH}


def test_what_was_written_first_and_is_seen_last_is_out_of_order() -> None:
    assert kinds(["a2", "a1", "b1", "d1"]) == {Kind.OUT_OF_ORDER}
    assert kinds(["d1", "a1", "a2", "b1"]) == {Kind.OUT_OF_ORDER}, "across transactions too"
    assert kinds(["b1", "a1", "a2", "d1"]) == set(), "of different writers"


def test_the_offsets_of_a_group_are_those_of_the_last_transaction_that_is_seen() -> None:
    first = Write("first", places("a"), Outcome.COMMITTED, offset=5)
    second = Write("second", places("b"), Outcome.UNKNOWN, offset=7)
    aborted = Write("third", places("c"), Outcome.ABORTED, offset=9)
    writes = [first, second, aborted]
    assert not offsets_anomalies(writes, {(0, b"a")}, 5)
    assert not offsets_anomalies(writes, {(0, b"a"), (0, b"b")}, 7)
    for seen, offset in (({(0, b"a")}, 7), ({(0, b"a"), (0, b"b")}, 5), ({(0, b"a")}, 9), ({(0, b"a")}, None)):
        (anomaly,) = offsets_anomalies(writes, set(seen), offset)
        assert anomaly.kind is Kind.INCONSISTENT_OFFSETS


def test_the_offsets_of_a_transaction_without_rows_may_be_there_or_not() -> None:
    writes = [Write("first", places("a"), Outcome.COMMITTED, offset=5), Write("empty", [], Outcome.UNKNOWN, offset=7)]
    assert not offsets_anomalies(writes, {(0, b"a")}, 5)
    assert not offsets_anomalies(writes, {(0, b"a")}, 7)


def test_a_batch_that_was_committed_from_an_attempt_that_is_not_known_is_seen_once_from_any() -> None:
    attempts = [Write(name, places(name), Outcome.UNKNOWN, unit="0/0", batch=0) for name in ("a", "b")]
    history = History(attempts, committed=frozenset({0}))

    def kinds_of(*values: str) -> list[Kind]:
        return [each.kind for each in history.anomalies({0: [value.encode() for value in values]})]

    assert kinds_of("a") == kinds_of("b") == []
    assert kinds_of() == [Kind.LOST]
    assert kinds_of("a", "b") == [Kind.DUPLICATE]
    assert [each.kind for each in History(committed=frozenset({0})).anomalies({})] == [Kind.LOST]


def test_of_batches_that_are_known_in_full_every_fault_is_found() -> None:
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


def test_a_check_that_fails_says_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"lost: \[b'd1'\] of task 0 is not seen, and it was committed"):
        history(*WELL).check({0: [b"a1", b"a2", b"b1"]})
