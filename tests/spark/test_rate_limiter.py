"""The rate limiter of a task, in virtual time: the task writes no faster than its share."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.rate_limiter import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def rows(count: int, nbytes: int, partitions: bool = False) -> TopicRows:
    columns = RecordColumns(pa.array([b"%d" % (n % 10) * nbytes for n in range(count)]))
    return TopicRows("t", columns, pa.array(range(count), pa.int32()) if partitions else None)


def handed_over(pace: RateLimiter, clock: Clock, several: list[TopicRows]) -> list[tuple[float, int]]:
    """Return the time and the number of bytes of each slice."""
    return [(clock.time, piece.columns.payload_nbytes) for chunk in several for piece in pace.throttle(chunk)]


def test_rate_never_exceeds_twice_the_share_and_averages_to_the_share() -> None:
    clock = Clock()
    pace = RateLimiter(1_000, clock.now, clock.sleep)
    slices = handed_over(pace, clock, [rows(40, 100), rows(3, 100), rows(57, 100)])
    assert sum(nbytes for _, nbytes in slices) == 10_000
    assert max(nbytes for _, nbytes in slices) <= 1_000
    assert slices[-1][0] - 100 >= (10_000 - slices[-1][1]) / 1_000
    for (first, _), (last, nbytes) in itertools.combinations(slices, 2):
        between = sum(slice_rows for time, slice_rows in slices if first <= time < last) + nbytes
        assert between <= 1_000 * (last - first) + nbytes + 1e-6
    assert pace.waited_seconds == clock.time - 100


def test_slices_keep_order_and_partitions_of_rows() -> None:
    clock = Clock()
    pieces = list(RateLimiter(50, clock.now, clock.sleep).throttle(rows(30, 10, partitions=True)))
    assert len(pieces) == 6
    assert pa.concat_arrays([piece.partition for piece in pieces]).to_pylist() == list(range(30))
    assert b"".join(v for piece in pieces for v in piece.columns.value.to_pylist()) == b"".join(
        rows(30, 10).columns.value.to_pylist()
    )


def test_row_above_the_share_is_sent_alone_and_delays_the_next() -> None:
    clock = Clock()
    slices = handed_over(RateLimiter(10, clock.now, clock.sleep), clock, [rows(2, 50)])
    assert slices == [(100, 50), (105, 50)]


def test_pause_is_not_followed_by_a_burst() -> None:
    clock = Clock()
    pace = RateLimiter(100, clock.now, clock.sleep)
    handed_over(pace, clock, [rows(1, 100)])
    clock.time += 1_000
    slices = handed_over(pace, clock, [rows(5, 100)])
    assert [time - slices[0][0] for time, _ in slices] == [0, 1, 2, 3, 4]


def test_never_waits_below_the_share() -> None:
    clock = Clock()
    pace = RateLimiter(1_000, clock.now, clock.sleep)
    for _ in range(10):
        handed_over(pace, clock, [rows(1, 100)])
        clock.time += 0.2
    assert pace.waited_seconds == 0


def test_consecutive_short_tasks_do_not_exceed_the_share() -> None:
    clock = Clock()
    written = 0
    for _ in range(20):
        began, pace = clock.time, RateLimiter(1_000, clock.now, clock.sleep)
        written += sum(nbytes for _, nbytes in handed_over(pace, clock, [rows(9, 100)]))
        clock.time += 0.1  # until brokers have responded
        pace.finish()
        assert pace.waited_seconds == pytest.approx(clock.time - began - 0.1)
    assert written == 18_000
    assert clock.time - 100 == pytest.approx(18)


def test_finish_does_not_wait_after_slow_task() -> None:
    clock = Clock()
    pace = RateLimiter(1_000, clock.now, clock.sleep)
    handed_over(pace, clock, [rows(9, 100)])
    clock.time += 1
    pace.finish()
    assert (pace.waited_seconds, clock.time) == (0, 101)
