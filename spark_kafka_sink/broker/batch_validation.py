"""What a batch of a client must be for a broker to take it, apart from its sequence.

Structure and CRC; one batch per append; its size; header fields that fit each other; and, where that is not switched
off, the records themselves: as many as announced, with offsets that fill the batch. A compacted topic takes no record
without a key.

A few kilobytes can be hundreds of megabytes before compression. So there is a limit to what is looked into, and one
batch of a cluster has its turn at a time.
"""

from __future__ import annotations

import threading

import numpy as np

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.errors import DecodeError, MissingDependencyError, UnsupportedFormatError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.decoder import decode_records, find_keyless_records, parse_batches
from spark_kafka_sink.records.header import HEADER_BYTES, BatchHeader, Buffer, parse_header

DECODED_BYTES_MAX = 64 << 20
"""The records of a batch are decoded into at most this much. By default a batch has a megabyte, compressed."""

RECORD_ERRORS_MAX = 100_000
"""At most this many faulty records are named in an answer."""

NO_PRODUCER_ID = -1


class RecordValidator:
    """Looks into the records of batches, for all partitions of a cluster. Any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def check(self, header: BatchHeader, batch: memoryview, *, keys_required: bool = False) -> None:
        """Refusal, if the records are not what the header says, or one lacks a key that it must have."""
        try:
            with self._turn:
                without_key = find_keyless_records(header, batch[HEADER_BYTES:], max_bytes=DECODED_BYTES_MAX)
        except MissingDependencyError as error:
            raise ApiError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
        except DecodeError as error:
            raise ApiError(error_codes.INVALID_RECORD, str(error)) from error
        if keys_required and len(without_key):
            reason = "a compacted topic takes no record without a key"
            raise ApiError(
                error_codes.INVALID_RECORD, reason, dict.fromkeys(without_key[:RECORD_ERRORS_MAX].tolist(), reason)
            )

    def first_record_since(self, batch: memoryview, timestamp: int) -> tuple[int, int] | None:
        """Time and offset of the first record that is not older. None: all are, or they cannot be looked into."""
        header = parse_header(batch)
        try:
            with self._turn:
                columns = decode_records(header, batch[HEADER_BYTES:], max_bytes=DECODED_BYTES_MAX)
        except (DecodeError, MissingDependencyError):
            return None
        times, offsets = columns.column("timestamp").to_numpy(), columns.column("offset").to_numpy()
        newer = np.flatnonzero(times >= timestamp)
        return (int(times[newer[0]]), int(offsets[newer[0]])) if len(newer) else None


def validate_batch(data: Buffer, *, bytes_max: int) -> tuple[BatchHeader, memoryview]:
    """The one batch in `data`, and its header. Refusal if it is not taken; its records are not looked at."""
    batches = _structure(data)
    if len(batches) != 1:
        raise ApiError(error_codes.INVALID_RECORD, f"one batch per partition is taken, here are {len(batches)}")
    header, batch = batches[0]
    if header.size_bytes > bytes_max:
        raise ApiError(
            error_codes.MESSAGE_TOO_LARGE, f"the batch has {header.size_bytes} bytes, at most {bytes_max} are taken"
        )
    _check_fields(header)
    return header, batch


def parse_batch_header(data: Buffer) -> BatchHeader:
    try:
        return parse_header(data)
    except UnsupportedFormatError as error:
        raise ApiError(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise ApiError(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _structure(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    try:
        return parse_batches(data)
    except UnsupportedFormatError as error:
        raise ApiError(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise ApiError(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _check_fields(header: BatchHeader) -> None:
    faults = [
        (header.record_count <= 0, f"a batch of {header.record_count} records"),
        (
            header.last_offset_delta + 1 != header.record_count,
            f"{header.record_count} records cannot have the last offset delta {header.last_offset_delta}",
        ),
        (header.is_control, "control records are the broker's to write"),
        (header.producer_id < NO_PRODUCER_ID, f"there is no producer id {header.producer_id}"),
        (header.producer_id >= 0 and header.base_sequence < 0, "a producer id without a sequence"),
        (header.producer_id >= 0 and header.producer_epoch < 0, "a producer id without an epoch"),
        (header.is_transactional and header.producer_id < 0, "a transactional batch without a producer id"),
        (header.codec > 4, f"codec {header.codec} is not known"),
    ]
    for wrong, reason in faults:
        if wrong:
            raise ApiError(error_codes.INVALID_RECORD, reason)
