"""Dead letters: the failed record, with headers that contain its destination and error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import BrokerError, InvalidRecordError, KafkaSinkError, NetworkError, RecordTooLargeError
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.spark.dead_letters import MAX_TRUNCATED_BYTES, build_dead_letters, truncate_dead_letters
from spark_kafka_sink.spark.failures import is_record_error
from tests.records.large_arrays import build_behind_2_gib

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def letters(columns: RecordColumns, error: KafkaSinkError | None = None, partition: int | None = 7) -> RecordColumns:
    error = error or InvalidRecordError("too old")
    return build_dead_letters(columns, topic="orders", partition=partition, error=error, batch="q/12")


def read_headers(columns: RecordColumns) -> list[list[tuple[str, Any]]]:
    assert columns.headers is not None
    return [[(header["key"], header["value"]) for header in row] for row in columns.headers.to_pylist()]


def test_dead_letter_headers_contain_destination_and_error() -> None:
    letters_table = letters(RecordColumns(value=pa.array([b"v"]), key=pa.array(["k"]), timestamp=pa.array([1234])))
    assert letters_table.value.to_pylist() == [b"v"]
    assert letters_table.key is not None
    assert letters_table.key.to_pylist() == ["k"]
    assert letters_table.timestamp is None
    assert read_headers(letters_table) == [
        [
            ("pykafka.topic", b"orders"),
            ("pykafka.partition", b"7"),
            ("pykafka.error", b"InvalidRecordError"),
            ("pykafka.message", b"too old"),
            ("pykafka.batch", b"q/12"),
            ("pykafka.timestamp", b"1234"),
        ]
    ]


def test_dead_letter_keeps_header_with_key_behind_2_gib() -> None:
    keys, values = build_behind_2_gib([b"a"], pa.large_string()), pa.array([b"1"])
    headers = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, values)
    letters_table = letters(RecordColumns(value=pa.array([b"v"]), headers=headers))
    assert read_headers(letters_table)[0][0] == ("a", b"1")


def test_dead_letter_keeps_rejected_timestamp_as_header() -> None:
    before_1970 = pa.array([-86_400_000_001], pa.timestamp("us", "UTC"))
    letters_table = letters(RecordColumns(value=pa.array([b"v"]), timestamp=before_1970))
    assert ("pykafka.timestamp", b"-86400001") in read_headers(letters_table)[0]


def test_error_header_has_kafkas_error_name() -> None:
    letters_table = letters(RecordColumns(value=pa.array([b"v"])), BrokerError("no", code=87, name="INVALID_RECORD"))
    assert ("pykafka.error", b"INVALID_RECORD") in read_headers(letters_table)[0]


def test_message_header_has_reason_with_options_as_spark_job_names_them() -> None:
    error = RecordTooLargeError("exceeds max.request.size", destination="topic linger.ms, partition 7")
    letters_table = letters(RecordColumns(value=pa.array([b"v"])), error)
    assert ("pykafka.message", b"exceeds kafka.max.request.size") in read_headers(letters_table)[0]


def test_partition_header_is_null_when_unknown() -> None:
    letters_table = letters(RecordColumns(value=pa.array([b"v"])), partition=None)
    assert ("pykafka.partition", None) in read_headers(letters_table)[0]


def test_own_headers_precede_added_headers() -> None:
    own = pa.array(
        [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
            None,
            [],
            [{"key": "c", "value": b"3"}],
        ],
        HEADERS,
    )
    rows = read_headers(letters(RecordColumns(value=pa.array([b"0", b"1", b"2", b"3"]), headers=own)))
    added = rows[1]
    assert len(added) == 5
    assert rows == [[("a", b"1"), ("b", None), *added], added, added, [("c", b"3"), *added]]


def test_keeps_headers_of_maps_and_slices() -> None:
    own = pa.array([[("x", "0")], [("a", "1"), ("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string()))
    columns = RecordColumns(value=pa.array([b"0", b"1", b"2"]), headers=own).slice(1)
    rows = read_headers(letters(columns))
    assert [row[:-5] for row in rows] == [[("a", b"1"), ("b", b"2")], [("c", b"3")]]


def test_header_without_key_gets_empty_key() -> None:
    own = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    assert read_headers(letters(RecordColumns(value=pa.array([b"0"]), headers=own)))[0][0] == ("", b"1")


def test_keeps_header_key_that_is_not_utf8() -> None:
    structs = pa.StructArray.from_arrays([pa.array([b"\xff"]), pa.array([b"1"])], ["key", "value"])
    own = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), structs)
    headers = letters(RecordColumns(value=pa.array([b"0"]), headers=own)).headers
    assert headers is not None
    assert headers.values.field("key")[:1].view(pa.binary()).to_pylist() == [b"\xff"]


def test_truncates_large_key_and_value_and_adds_value_size() -> None:
    value, key = b"v" * (MAX_TRUNCATED_BYTES + 1), "k" * (MAX_TRUNCATED_BYTES + 5)
    columns = RecordColumns(value=pa.array([value, None, b"small"]), key=pa.array([key, "k", None]))
    letters_table = truncate_dead_letters(letters(columns, RecordTooLargeError("1 MB is the limit")))
    assert letters_table.value.to_pylist() == [value[:MAX_TRUNCATED_BYTES], None, b"small"]
    assert letters_table.key is not None
    assert letters_table.key.to_pylist() == [key.encode()[:MAX_TRUNCATED_BYTES], b"k", None]
    sizes = [row[-1] for row in read_headers(letters_table)]
    assert sizes == [
        ("pykafka.value.bytes", str(len(value)).encode()),
        ("pykafka.value.bytes", None),
        ("pykafka.value.bytes", b"5"),
    ]


def test_only_record_errors_become_dead_letters() -> None:
    assert is_record_error(RecordTooLargeError(""))
    assert is_record_error(InvalidRecordError(""))
    assert not is_record_error(NetworkError(""))
    assert not is_record_error(BrokerError("", code=29, name="TOPIC_AUTHORIZATION_FAILED"))
