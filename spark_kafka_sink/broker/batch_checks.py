"""What a batch of a client must be for a broker to take it, apart from its sequence.

Structure and CRC; one batch per append; its size; header fields that fit each other; and, where that is not switched
off, the records themselves: as many as announced, with offsets that fill the batch. A compacted topic takes no record
without a key.
"""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.broker.refusal import Refusal
from spark_kafka_sink.errors import DecodeError, UnsupportedFormatError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.arrays import null_mask
from spark_kafka_sink.records.decoder import check_batches, decode_body
from spark_kafka_sink.records.header import HEADER_BYTES, BatchHeader, Buffer, parse_header


def check_batch(
    data: Buffer, *, bytes_max: int, check_records: bool, keys_required: bool = False
) -> tuple[BatchHeader, memoryview]:
    """The one batch in `data`, and its header; the batch can be written to. Refusal if it is not taken."""
    batches = _structure(data)
    if len(batches) != 1:
        raise Refusal(error_codes.INVALID_RECORD, f"one batch per partition is taken, here are {len(batches)}")
    header, batch = batches[0]
    if header.size_bytes > bytes_max:
        raise Refusal(
            error_codes.MESSAGE_TOO_LARGE, f"the batch has {header.size_bytes} bytes, at most {bytes_max} are taken"
        )
    _check_fields(header)
    if check_records or keys_required:
        _check_records(header, batch, keys_required)
    return header, memoryview(bytearray(batch)) if batch.readonly else batch


def parse_header_or_refuse(data: Buffer) -> BatchHeader:
    try:
        return parse_header(data)
    except UnsupportedFormatError as error:
        raise Refusal(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise Refusal(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _structure(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    try:
        return check_batches(data)
    except UnsupportedFormatError as error:
        raise Refusal(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
    except DecodeError as error:
        raise Refusal(error_codes.CORRUPT_MESSAGE, str(error)) from error


def _check_fields(header: BatchHeader) -> None:
    faults = [
        (header.record_count <= 0, f"a batch of {header.record_count} records"),
        (
            header.last_offset_delta + 1 != header.record_count,
            f"{header.record_count} records cannot have the last offset delta {header.last_offset_delta}",
        ),
        (header.control, "control records are the broker's to write"),
        (header.producer_id >= 0 and header.base_sequence < 0, "a producer id without a sequence"),
        (header.producer_id >= 0 and header.producer_epoch < 0, "a producer id without an epoch"),
        (header.transactional and header.producer_id < 0, "a transactional batch without a producer id"),
        (header.codec > 4, f"codec {header.codec} is not known"),
    ]
    for wrong, reason in faults:
        if wrong:
            raise Refusal(error_codes.INVALID_RECORD, reason)


def _check_records(header: BatchHeader, batch: memoryview, keys_required: bool) -> None:
    try:
        columns = decode_body(header, batch[HEADER_BYTES:])
    except DecodeError as error:
        raise Refusal(error_codes.INVALID_RECORD, str(error)) from error
    offsets = columns.column("offset")
    if offsets[0].as_py() != header.base_offset or offsets[-1].as_py() != header.last_offset:
        raise Refusal(error_codes.INVALID_RECORD, "the offsets of the records do not fill the batch")
    without_key = np.flatnonzero(null_mask(columns.column("key"))) if keys_required else ()
    if len(without_key):
        reason = "a compacted topic takes no record without a key"
        raise Refusal(error_codes.INVALID_RECORD, reason, dict.fromkeys(map(int, without_key), reason))
