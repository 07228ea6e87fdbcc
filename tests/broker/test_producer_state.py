"""ProducerStateEntry: which batches of a producer are appended, recognized as duplicates or rejected."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.protocol import error_codes
from tests.broker.wire_client import batch

MAX_SEQUENCE = 2**31 - 1
GAP = error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = error_codes.INVALID_PRODUCER_EPOCH


def append(log: PartitionLog, sequence: int, *, epoch: int = 0, count: int = 1, **options: bool) -> str | int:
    """Append a batch of producer 7. Return "offset", "duplicate of offset", or the error code of a rejected batch."""
    values = [b"x"] * count
    try:
        appended = log.append(batch(*values, sequence=sequence, producer=(7, epoch)), wall_ms=1, **options)
    except ApiError as error:
        return error.code
    return f"duplicate of {appended.base_offset}" if appended.is_duplicate else str(appended.base_offset)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([(0, 0, 1), (0, 1, 1)], ["0", "1"], id="consecutive"),
        pytest.param([(0, 0, 2), (0, 2, 3)], ["0", "2"], id="sequence numbers count records"),
        pytest.param([(0, 0, 1), (0, 0, 1)], ["0", "duplicate of 0"], id="last batch again"),
        pytest.param([(0, 0, 1), (0, 2, 1)], ["0", GAP], id="gap"),
        pytest.param([(0, 0, 2), (0, 1, 2)], ["0", GAP], id="overlap"),
        pytest.param([(0, 0, 2), (0, 0, 1)], ["0", GAP], id="same start with fewer records"),
        pytest.param([(0, 41, 1), (0, 42, 1)], ["0", "1"], id="unknown producer with any sequence"),
        pytest.param([(0, 0, 1), (1, 0, 1)], ["0", "1"], id="new epoch begins at 0"),
        pytest.param([(0, 0, 1), (1, 1, 1)], ["0", GAP], id="new epoch does not begin at 0"),
        pytest.param([(1, 0, 1), (0, 1, 1)], ["0", FENCED], id="previous epoch"),
        pytest.param([(0, 0, 1), (1, 0, 1), (0, 0, 1)], ["0", "1", FENCED], id="duplicate of previous epoch"),
        pytest.param(
            [(0, MAX_SEQUENCE, 1), (0, 0, 1), (0, MAX_SEQUENCE, 1)],
            ["0", "1", "duplicate of 0"],
            id="wrap between batches",
        ),
        pytest.param(
            [(0, MAX_SEQUENCE - 1, 4), (0, 2, 1), (0, MAX_SEQUENCE - 1, 4)],
            ["0", "4", "duplicate of 0"],
            id="wrap within a batch",
        ),
    ],
)
def test_accepts_or_rejects_batch_by_epoch_and_sequence(
    batches: list[tuple[int, int, int]], expected: list[str | int]
) -> None:
    log = PartitionLog(LogConfig())
    results = [append(log, sequence, epoch=epoch, count=count) for epoch, sequence, count in batches]
    assert results == expected


def test_recognizes_duplicates_of_last_five_batches() -> None:
    log = PartitionLog(LogConfig())
    for sequence in range(6):
        append(log, sequence)
    repeated = [append(log, sequence) for sequence in range(6)]
    assert repeated == [GAP, *(f"duplicate of {offset}" for offset in range(1, 6))]
    assert log.log_end_offset == 6


def test_tracks_sequence_numbers_per_producer() -> None:
    log = PartitionLog(LogConfig())
    append(log, 0)
    log.append(batch(b"a", sequence=5, producer=(8, 0)), wall_ms=1)
    assert append(log, 1) == "2"


def test_unknown_producer_must_begin_at_zero_if_required() -> None:
    log = PartitionLog(LogConfig())
    assert append(log, 3, new_producer_must_start_at_zero=True) == GAP
    assert append(log, 0, new_producer_must_start_at_zero=True) == "0"


def test_first_sequence_of_partition_must_be_zero_from_kafka_4_5() -> None:
    log = PartitionLog(LogConfig(first_sequence_must_be_zero=True))
    assert append(log, 3) == GAP
    assert append(log, 0) == "0"
    log.forget_producers()
    assert append(log, 7) == "1"  # the partition has held a record


def test_accepts_any_sequence_after_producer_state_expired() -> None:
    log = PartitionLog(LogConfig())
    append(log, 0)
    log.forget_producers()
    assert append(log, 7) == "1"


def test_recognizes_duplicate_of_deleted_batch() -> None:
    log = PartitionLog(LogConfig())
    append(log, 0)
    log.delete_records(1)
    assert (log.log_start_offset, log.find_producer_epoch(7)) == (1, 0)
    assert [append(log, sequence) for sequence in (0, 9, 1)] == ["duplicate of 0", GAP, "1"]


def test_rejects_other_batches_during_open_transaction() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch(b"a", sequence=0, producer=(7, 0), transactional=True), wall_ms=1)
    assert append(log, 1) == error_codes.INVALID_TXN_STATE
