"""Builder of batch headers with default fields, which tests override."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.records.header import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Buffer,
    encode_header,
    patch_header,
)

_FLAGS = {"transactional": TRANSACTIONAL, "control": CONTROL, "log_append_time": LOG_APPEND_TIME}


def build_header(segments: Sequence[Buffer], record_count: int, codec: int = 0, **fields: int) -> bytes:
    """Build the header of a batch with these records. `fields`: fields of BatchHeader, and flags by name."""
    attributes = codec | sum(flag for name, flag in _FLAGS.items() if fields.pop(name, False))
    base_offset = fields.pop("base_offset", 0)
    fields = {"last_offset_delta": record_count - 1, "base_timestamp": -1, "max_timestamp": -1, **fields}
    header = bytearray(encode_header(segments, attributes=attributes, record_count=record_count, **fields))
    patch_header(header, base_offset=base_offset)
    return bytes(header)
