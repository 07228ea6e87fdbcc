"""Validation of batches from clients, except for their sequence numbers (Kafka's LogValidator).

A valid request has exactly one batch per partition. The batch must be well-formed, match its CRC, have consistent
header fields, and be no larger than `max.message.bytes`. Unless `check_records` is off, its records are validated as
well: their count and offsets must agree with the header. Records of a compacted topic are always validated, and must
have keys.

Because a few kilobytes of compressed records can expand to hundreds of megabytes, the decompressed size is limited and
a cluster decompresses only one batch at a time.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.producer_state import NO_PRODUCER_ID
from spark_kafka_sink.errors import DecodeError, MissingDependencyError, UnsupportedFormatError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.decoder import decode_records, find_keyless_records, parse_batches
from spark_kafka_sink.records.header import HEADER_BYTES, BatchHeader, Buffer, parse_header

MAX_DECODED_BYTES = 64 << 20
"""Maximum size of a batch's decoded records. The batch itself, possibly compressed, is limited to 1 MiB by default."""

MAX_RECORD_ERRORS = 100_000
"""Maximum number of invalid records that a response lists."""

_MAX_CODEC = 4
"""The highest compression codec of record format v2 (zstd)."""


class TimestampAndOffset(NamedTuple):
    """The timestamp and the offset of a record."""

    timestamp: int
    offset: int


NO_RECORD = TimestampAndOffset(timestamp=-1, offset=-1)
"""The values that ListOffsets returns if no record matches the requested timestamp."""


class RecordValidator:
    """Decodes and checks the records of one batch at a time. All logs of a cluster share one validator. Thread-safe."""

    def __init__(self) -> None:
        self._decode_lock = threading.Lock()
        """Held while a batch is decoded, so that only one batch at a time expands to up to MAX_DECODED_BYTES."""

    def validate(self, header: BatchHeader, batch: memoryview, *, requires_keys: bool = False) -> None:
        """Raise ApiError unless the records agree with the header and, if required, all have keys."""
        try:
            with self._decode_lock:
                keyless_indices = find_keyless_records(header, batch[HEADER_BYTES:], max_bytes=MAX_DECODED_BYTES)
        except MissingDependencyError as error:
            raise ApiError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
        except DecodeError as error:
            raise ApiError(error_codes.INVALID_RECORD, str(error)) from error
        if requires_keys and len(keyless_indices):
            message = "Records of a compacted topic must have a key."
            record_errors = dict.fromkeys(keyless_indices[:MAX_RECORD_ERRORS].tolist(), message)
            raise ApiError(error_codes.INVALID_RECORD, message, record_errors)

    def find_first_record_at_or_after(
        self, batch: memoryview, timestamp: int, min_offset: int
    ) -> TimestampAndOffset | None:
        """Find a batch's first record from `min_offset` on with this timestamp or a later one.

        Return None if there is no such record, or if the batch cannot be decoded.
        """
        timestamps, offsets = self._decode_timestamps_and_offsets(batch, min_offset)
        matching_indices = np.flatnonzero(timestamps >= timestamp)
        if not len(matching_indices):
            return None
        first_index = matching_indices[0]
        return TimestampAndOffset(int(timestamps[first_index]), int(offsets[first_index]))

    def find_max_timestamp(self, batch: memoryview, min_offset: int) -> int | None:
        """Return the largest timestamp of a batch's records from `min_offset` on.

        Return None if there is no such record, or if the batch cannot be decoded.
        """
        timestamps, _ = self._decode_timestamps_and_offsets(batch, min_offset)
        return int(timestamps.max()) if len(timestamps) else None

    def _decode_timestamps_and_offsets(
        self, batch: memoryview, min_offset: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the timestamps and offsets of a batch's records from `min_offset` on.

        If the batch cannot be decoded, both arrays are empty.
        """
        header = parse_header(batch)
        try:
            with self._decode_lock:
                columns = decode_records(header, batch[HEADER_BYTES:], max_bytes=MAX_DECODED_BYTES)
        except (DecodeError, MissingDependencyError):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        timestamps, offsets = columns.column("timestamp").to_numpy(), columns.column("offset").to_numpy()
        is_remaining = offsets >= min_offset
        return timestamps[is_remaining], offsets[is_remaining]


def validate_batch(data: Buffer, *, max_bytes: int) -> tuple[BatchHeader, memoryview]:
    """Return the only batch in `data` and its header, without decoding its records. Raise ApiError if it is invalid."""
    batches = _parse_batches(data)
    if len(batches) != 1:
        raise ApiError(error_codes.INVALID_RECORD, f"A partition must have one batch per request, not {len(batches)}.")
    header, batch = batches[0]
    if header.size_bytes > max_bytes:
        raise ApiError(
            error_codes.MESSAGE_TOO_LARGE,
            f"The batch of {header.size_bytes} bytes exceeds the limit of {max_bytes} bytes (max.message.bytes).",
        )
    _validate_header(header)
    return header, batch


def parse_batch_header(data: Buffer) -> BatchHeader:
    """Parse the header of the first batch in `data`. Raise ApiError if the header is malformed or not supported."""
    try:
        return parse_header(data)
    except UnsupportedFormatError as error:
        raise ApiError(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise ApiError(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _parse_batches(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    try:
        return parse_batches(data)
    except UnsupportedFormatError as error:
        raise ApiError(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise ApiError(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _validate_header(header: BatchHeader) -> None:
    """Raise ApiError if a field is invalid or contradicts another one. The error describes the first problem."""
    checks = [
        (header.record_count <= 0, f"The batch has {header.record_count} records."),
        (
            header.last_offset_delta + 1 != header.record_count,
            f"The batch has {header.record_count} records and the last offset delta {header.last_offset_delta}.",
        ),
        (header.is_control, "Only brokers can write control records."),
        (header.producer_id < NO_PRODUCER_ID, f"Producer id {header.producer_id} is invalid."),
        (header.producer_id >= 0 and header.base_sequence < 0, "The batch has a producer id and no sequence number."),
        (header.producer_id >= 0 and header.producer_epoch < 0, "The batch has a producer id and no epoch."),
        (header.is_transactional and header.producer_id < 0, "The batch is transactional and has no producer id."),
        (header.codec > _MAX_CODEC, f"Compression codec {header.codec} is unknown."),
    ]
    problems = [message for is_invalid, message in checks if is_invalid]
    if problems:
        raise ApiError(error_codes.INVALID_RECORD, problems[0])
