"""Compression bombs: batches that are small on the wire may use only a limited amount of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.broker import batch_validation
from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.batch_validation import RecordValidator
from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.decoder import decode_records, find_keyless_records
from spark_kafka_sink.records.header import parse_header
from tests.broker.in_process_broker import InProcessBroker
from tests.broker.wire_client import batch, partition_response, produce_request
from tests.records.batch_headers import build_header
from tests.records.reference_encoder import Row, reference_record, reference_varint

MEGABYTE = 1 << 20
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def encode_compressed_batch(codec: Codec, records: bytes, count: int) -> bytes:
    body = compress(codec, [records])
    header = build_header(segments=[body], record_count=count, base_timestamp=1000, max_timestamp=1000, codec=codec)
    return bytes(header) + bytes(body)


def encode_zeros(size: int) -> bytes:
    """Encode a record whose value is zeros."""
    return reference_record(Row(bytes(size)), 0, 0)


def encode_many_records(count: int) -> bytes:
    """Encode records of two alternating sizes, so that the decoder must examine each one."""
    bodies = [
        b"\0\0" + reference_varint(index) + b"\1" + (b"\2v" if index % 2 else b"\1") + b"\0" for index in range(count)
    ]
    return b"".join(reference_varint(len(body)) + body for body in bodies)


def encode_many_headers(count: int) -> bytes:
    return reference_record(Row(b"", None, (("", None),) * count), 0, 0)


def append_rejected(data: bytes) -> tuple[int, int]:
    """Append a batch that is rejected. Return the error code, and the peak of allocated memory without the batch."""
    log = PartitionLog(LogConfig(max_message_bytes=len(data)))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            log.append(data, wall_ms=1)
        return caught.value.code, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_rejects_compression_bomb_within_memory_limit(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    monkeypatch.setattr(batch_validation, "MAX_DECODED_BYTES", 4 * MEGABYTE)
    data = encode_compressed_batch(codec, encode_zeros(64 * MEGABYTE), 1)
    code, peak = append_rejected(data)
    assert code == error_codes.INVALID_RECORD
    assert peak < 2 * 4 * MEGABYTE + 2 * len(data)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name)
def test_memory_limit_includes_overhead_of_records_and_headers(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    for records, count in ((encode_many_records(100_000), 100_000), (encode_many_headers(100_000), 1)):
        monkeypatch.setattr(batch_validation, "MAX_DECODED_BYTES", 4 * MEGABYTE)
        data = encode_compressed_batch(codec, records, count)
        code, peak = append_rejected(data)
        assert code == error_codes.INVALID_RECORD
        assert peak < 2 * 4 * MEGABYTE


def test_accepts_batch_at_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for records, count in (
        (encode_zeros(4 * MEGABYTE - 100), 1),
        (encode_many_records(38_000), 38_000),
        (encode_many_headers(65_000), 1),
    ):
        monkeypatch.setattr(batch_validation, "MAX_DECODED_BYTES", 4 * MEGABYTE)
        log = PartitionLog(LogConfig())
        data = encode_compressed_batch(Codec.ZSTD, records, count)
        tracemalloc.start()
        log.append(data, wall_ms=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert log.records_appended == count
        assert peak < 2 * 4 * MEGABYTE


def test_decodes_one_batch_of_a_cluster_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InProcessBroker().cluster
    calls: list[tuple[str, bool]] = []

    def record_calls(function: Callable[..., Any]) -> None:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            calls.append((function.__name__, cluster._record_validator._decode_lock.locked()))
            return function(*args, **kwargs)

        monkeypatch.setattr(batch_validation, function.__name__, recorded)

    record_calls(find_keyless_records)
    record_calls(decode_records)
    for partition in range(2):
        cluster.log("t", partition).append(encode_compressed_batch(Codec.ZSTD, encode_zeros(10), 1), wall_ms=1)
    cluster.log("t", 0).find_max_timestamp()
    assert calls == [("find_keyless_records", True), ("find_keyless_records", True), ("decode_records", True)]
    assert not cluster._record_validator._decode_lock.locked()


def test_offset_lookup_does_not_decompress_stored_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "MAX_DECODED_BYTES", 4 * MEGABYTE)
    log = PartitionLog(LogConfig(check_records=False))
    log.append(encode_compressed_batch(Codec.ZSTD, encode_zeros(64 * MEGABYTE), 1), wall_ms=1)
    tracemalloc.start()
    assert log.find_offset_by_timestamp(0) == log.find_max_timestamp() == (1000, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 4 * MEGABYTE


def test_stored_batch_does_not_retain_request_memory() -> None:
    frame = bytearray(batch(b"a")) + bytes(1000)
    log = PartitionLog(LogConfig())
    log.append(memoryview(frame)[:-1000], wall_ms=1)
    (stored,) = log.read(0, 10_000).batches
    assert stored.nbytes == len(stored.obj) < 1000  # type: ignore[arg-type]


@pytest.mark.parametrize("producer_id", [-2, -(2**63)])
def test_rejects_negative_producer_id(producer_id: int) -> None:
    broker = InProcessBroker()
    response = partition_response(
        broker.request(produce_request(batch(b"a", sequence=0, producer=(producer_id, 0))), 9)
    )
    assert response.error_code == error_codes.INVALID_RECORD
    assert str(producer_id) in (response.error_message or "")
    assert broker.values() == []


def test_limits_number_of_record_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "MAX_RECORD_ERRORS", 3)
    data = memoryview(batch(*[b"a"] * 10))
    with pytest.raises(ApiError) as caught:
        RecordValidator().validate(parse_header(data), data, requires_keys=True)
    assert list(caught.value.record_errors) == [0, 1, 2]
