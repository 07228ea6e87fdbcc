"""Batches that a log rejects: corrupt, incomplete, too large, or without a required key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec
from tests.broker.wire_client import batch
from tests.records.shapes import encode_batches

INVALID = error_codes.INVALID_RECORD
CORRUPT = error_codes.CORRUPT_MESSAGE


def rejection_code(data: bytes, config: LogConfig | None = None) -> int:
    log = PartitionLog(config or LogConfig())
    with pytest.raises(ApiError) as caught:
        log.append(data, wall_ms=1)
    assert (log.log_end_offset, log.batches_appended) == (0, 0), "a rejected batch must not change the log"
    return caught.value.code


def flip_bit(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(flip_bit(batch(b"abc"), 70), CORRUPT, id="bit of a record flipped"),
        pytest.param(flip_bit(batch(b"abc"), 30), CORRUPT, id="bit of the header flipped"),
        pytest.param(batch(b"abc")[:-1], CORRUPT, id="truncated"),
        pytest.param(b"", INVALID, id="empty"),
        pytest.param(batch(b"a") + batch(b"b"), INVALID, id="two batches"),
        pytest.param(batch(b"a", record_count=2), INVALID, id="fewer records than in header"),
        pytest.param(batch(b"a", b"b", record_count=1, last_offset_delta=0), INVALID, id="more records than in header"),
        pytest.param(batch(b"a", last_offset_delta=3), INVALID, id="last offset delta differs from count"),
        pytest.param(batch(b"a", record_count=0, last_offset_delta=-1), INVALID, id="no records"),
        pytest.param(batch(b"a", control=True), INVALID, id="control batch"),
        pytest.param(batch(b"a", producer=(1, 0)), INVALID, id="producer id without sequence"),
        pytest.param(batch(b"a", transactional=True), INVALID, id="transactional without producer id"),
        pytest.param(batch(b"a", codec=1), INVALID, id="invalid gzip"),
        pytest.param(batch(b"a", codec=7), INVALID, id="unknown codec"),
        pytest.param(
            batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, id="format v1"
        ),
    ],
)
def test_rejects_data_that_is_not_exactly_one_valid_batch(data: bytes, code: int) -> None:
    assert rejection_code(data) == code


def test_rejects_batch_larger_than_max_message_bytes() -> None:
    data = batch(b"abc")
    assert rejection_code(data, LogConfig(max_message_bytes=len(data) - 1)) == error_codes.MESSAGE_TOO_LARGE
    assert PartitionLog(LogConfig(max_message_bytes=len(data))).append(data, wall_ms=1).base_offset == 0


@pytest.mark.parametrize("check_records", [True, False])
def test_compacted_topic_rejects_keyless_records_by_index(check_records: bool) -> None:
    log = PartitionLog(LogConfig(is_compacted=True, check_records=check_records))
    data = encode_batches(RecordColumns(pa.array(["a", "b", "c", "d"]), pa.array(["k", None, "k", None])), Codec.NONE)
    with pytest.raises(ApiError) as raised:
        log.append(data, wall_ms=1)
    assert (raised.value.code, sorted(raised.value.record_errors)) == (INVALID, [1, 3])
    assert log.log_end_offset == 0
