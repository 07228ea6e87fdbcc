from __future__ import annotations

from datetime import datetime, timezone

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.messages.fetch import AbortedTransaction
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA, FetchedRows, iterate_visible_rows
from tests.reader.stored_batches import BASE_TIME, batch, compacted, marker

ALL = 1 << 40


def show(
    *batches: bytes, aborted: list[AbortedTransaction] | None = None, start: int = 0, stop: int = ALL
) -> FetchedRows:
    (fetched,) = iterate_visible_rows(b"".join(batches), aborted, topic="t", partition=3, start=start, stop=stop)
    return fetched


def values(fetched: FetchedRows) -> list[bytes]:
    return fetched.rows.column("value").to_pylist()  # type: ignore[no-any-return]


def aborted(producer_id: int, first_offset: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer_id, first_offset=first_offset)


def test_rows_have_columns_of_spark_kafka_source() -> None:
    fetched = show(batch(5, b"a", headers=(("h", b"1"), ("n", None))), batch(6, b"b", log_append_time=BASE_TIME + 99))
    assert fetched.rows.schema.equals(ROWS_SCHEMA)
    first, second = fetched.rows.to_pylist()
    assert first == {
        "key": b"k5",
        "value": b"a",
        "topic": "t",
        "partition": 3,
        "offset": 5,
        "timestamp": datetime.fromtimestamp(BASE_TIME / 1000, timezone.utc),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
    }
    assert second["timestampType"] == 1
    assert second["timestamp"].timestamp() * 1000 == BASE_TIME + 99
    assert second["headers"] is None


def test_limits_rows_to_bounds_and_continues_after_batch() -> None:
    fetched = show(batch(0, b"a", b"b", b"c", b"d"), batch(4, b"e", b"f"), start=2, stop=5)
    assert values(fetched) == [b"c", b"d", b"e"]
    assert fetched.next_offset == 6


def test_earlier_batches_do_not_move_next_offset_back() -> None:
    assert show(batch(0, b"a"), start=7).next_offset == 7


def test_empty_fetch_gives_table_with_all_columns() -> None:
    for records in (None, b""):
        (fetched,) = iterate_visible_rows(records, None, topic="t", partition=0, start=9, stop=ALL)
        assert (fetched.rows.num_rows, fetched.next_offset) == (0, 9)
        assert fetched.rows.schema.equals(ROWS_SCHEMA)


def test_truncated_batch_is_left_for_next_fetch() -> None:
    whole, cut = batch(0, b"a"), batch(1, b"b")
    fetched = show(whole, cut[:-1])
    assert (values(fetched), fetched.next_offset) == ([b"a"], 1)


def test_skips_control_batches() -> None:
    fetched = show(batch(0, b"a", producer_id=1, transactional=True), marker(1, 1, commit=True))
    assert (values(fetched), fetched.next_offset) == ([b"a"], 2)


def test_hides_rows_of_aborted_transaction_until_marker() -> None:
    fetched = show(
        batch(0, b"before", producer_id=1, transactional=True),
        marker(1, 1, commit=True),
        batch(2, b"x", b"y", producer_id=1, transactional=True),
        batch(4, b"other", producer_id=2, transactional=True),
        batch(5, b"plain"),
        batch(6, b"z", producer_id=1, transactional=True),
        marker(7, 1, commit=False),
        batch(8, b"after", producer_id=1, transactional=True),
        marker(9, 2, commit=True),
        marker(10, 1, commit=True),
        aborted=[aborted(1, 2)],
    )
    assert values(fetched) == [b"before", b"other", b"plain", b"after"]
    assert fetched.next_offset == 11


def test_transactions_of_many_producers_interleave() -> None:
    log = [
        batch(0, b"1a", producer_id=1, transactional=True),
        batch(1, b"2a", producer_id=2, transactional=True),
        marker(2, 1, commit=False),
        batch(3, b"1b", producer_id=1, transactional=True),
        marker(4, 2, commit=False),
        batch(5, b"2b", producer_id=2, transactional=True),
        marker(6, 1, commit=False),
        marker(7, 2, commit=True),
    ]
    # As brokers may send them: in no particular order.
    assert values(show(*log, aborted=[aborted(1, 3), aborted(2, 1), aborted(1, 0)])) == [b"2b"]


def test_hides_aborted_transaction_that_began_before_fetch() -> None:
    fetched = show(
        batch(5, b"x", producer_id=1, transactional=True), marker(6, 1, commit=False), start=5, aborted=[aborted(1, 2)]
    )
    assert values(fetched) == []


def test_shows_non_transactional_batch_of_aborted_producer() -> None:
    assert values(show(batch(3, b"a", producer_id=1), aborted=[aborted(1, 0)])) == [b"a"]


def test_read_uncommitted_shows_aborted_rows() -> None:
    assert values(show(batch(0, b"x", producer_id=1, transactional=True), marker(1, 1, commit=False))) == [b"x"]


def test_skips_batches_emptied_by_compaction() -> None:
    fetched = show(compacted(0, 9), batch(10, b"a"))
    assert (values(fetched), fetched.next_offset) == ([b"a"], 11)
    assert show(compacted(0, 9)).next_offset == 10


def test_rejects_control_record_with_invalid_key() -> None:
    broken = bytearray(marker(0, 1, commit=False))
    broken[61 + 5] = 2  # the length of the key, as a zigzag varint: 1
    with pytest.raises(DecodeError):
        show(bytes(broken))
