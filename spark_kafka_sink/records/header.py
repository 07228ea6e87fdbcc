"""The 61-byte header of a record batch (format v2), with functions that encode, parse and patch it.

    offset  bytes  field
         0      8  baseOffset              assigned by the broker, not covered by the CRC
         8      4  batchLength             bytes after this field
        12      4  partitionLeaderEpoch    not covered by the CRC
        16      1  magic = 2
        17      4  crc                     CRC-32C of the bytes after this field
        21      2  attributes              bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 horizon
        23      4  lastOffsetDelta
        27      8  baseTimestamp
        35      8  maxTimestamp
        43      8  producerId
        51      2  producerEpoch
        53      4  baseSequence
        57      4  record count

Records do not depend on the header, so they are encoded only once. If a batch is retried, or sent with another producer
id or epoch, it gets a new header, with a new CRC over the same records. The records of a batch are passed as segments:
buffers that together form the body of the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from spark_kafka_sink.errors import DecodeError, UnsupportedFormatError

try:
    from crc32c import crc32c as crc32c
except ImportError:
    from spark_kafka_sink.records.checksum import crc32c as crc32c  # type: ignore[assignment]

Buffer: TypeAlias = "bytes | bytearray | memoryview"

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Size of baseOffset and batchLength, which batchLength does not count."""
_EMPTY_BATCH_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES
"""The batchLength of a batch without records."""
_KEEP_GIL = 0
"""The `gil_release_mode` with which the crc32c package keeps the GIL.

By default, the package releases the GIL for more than 32 kB. The checksum of 300 kB takes only 20 us, but afterwards,
the sender thread has to wait until another thread gives the GIL back. For large batches, this took 3 to 9% of the CPU
time.
"""
_LEADER_EPOCH_OFFSET = 12
MAGIC_OFFSET = 16
_CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
_MAX_TIMESTAMP_OFFSET = 35
MAGIC = 2
"""Version of the record format, and value of the header's magic byte."""

# Bits of the attributes:
COMPRESSION_CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_OFFSET_TO_CRC_LAYOUT = struct.Struct(">qiibI")
_ATTRIBUTES_TO_COUNT_LAYOUT = struct.Struct(">hiqqqhii")
_INT64_LAYOUT = struct.Struct(">q")
_INT32_LAYOUT = struct.Struct(">i")


class BatchHeader(NamedTuple):
    """The fields of a batch header, in the order in which they are encoded."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        """The number of the compression codec, which need not be a known one."""
        return self.attributes & COMPRESSION_CODEC_MASK

    @property
    def has_log_append_time(self) -> bool:
        """Whether `max_timestamp`, set by the broker, is the timestamp of all records."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch marks the end of a transaction instead of containing records of a producer."""
        return bool(self.attributes & CONTROL)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""
        return self.batch_length + LENGTH_PREFIX_BYTES


def encode_header(  # noqa: PLR0913 - one parameter per field; a tuple of them would cost as much as the checksum
    segments: Sequence[Buffer],
    *,
    last_offset_delta: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Encode the header of a batch.

    `segments`: the records of the batch, already compressed if `attributes` contain a codec. The header contains their
    size and their checksum.
    """
    crc_covered_fields = _ATTRIBUTES_TO_COUNT_LAYOUT.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    checksum = crc32c(crc_covered_fields)
    length = _EMPTY_BATCH_LENGTH
    for segment in segments:
        checksum = crc32c(segment, checksum, _KEEP_GIL)
        length += len(segment)
    return _OFFSET_TO_CRC_LAYOUT.pack(0, length, -1, MAGIC, checksum) + crc_covered_fields


def parse_header(buffer: Buffer) -> BatchHeader:
    """Parse the header at the start of `buffer`, without checking the CRC.

    Raise DecodeError if the header is truncated or its batchLength is too small, and UnsupportedFormatError if the
    record format is not v2.
    """
    if len(buffer) < HEADER_BYTES:
        if len(buffer) > MAGIC_OFFSET and buffer[MAGIC_OFFSET] < MAGIC:
            raise _build_old_format_error(buffer[MAGIC_OFFSET])
        raise DecodeError(f"record batch of {len(buffer)} bytes is shorter than its header of {HEADER_BYTES} bytes")
    base_offset, batch_length, leader_epoch, magic, crc = _OFFSET_TO_CRC_LAYOUT.unpack_from(buffer, 0)
    if magic in (0, 1):
        raise _build_old_format_error(magic)
    if magic != MAGIC:
        raise UnsupportedFormatError(f"Record format v{magic} is not supported. Only v2 is.")
    if batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise DecodeError(f"record batch has a length of {batch_length} bytes, which is less than its header")
    return BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        *_ATTRIBUTES_TO_COUNT_LAYOUT.unpack_from(buffer, ATTRIBUTES_OFFSET),
    )


def patch_header(
    buffer: bytearray | memoryview,
    *,
    base_offset: int | None = None,
    leader_epoch: int | None = None,
    append_time: int | None = None,
) -> None:
    """Set fields that a broker fills in before it stores a batch. A field for which None is passed does not change.

    `append_time`: the log append time, which takes the place of the records' timestamps. Setting it also updates the
    CRC. The other fields are not covered by the CRC.
    """
    if base_offset is not None:
        _INT64_LAYOUT.pack_into(buffer, 0, base_offset)
    if leader_epoch is not None:
        _INT32_LAYOUT.pack_into(buffer, _LEADER_EPOCH_OFFSET, leader_epoch)
    if append_time is not None:
        header = parse_header(buffer)
        struct.pack_into(">h", buffer, ATTRIBUTES_OFFSET, header.attributes | LOG_APPEND_TIME)
        _INT64_LAYOUT.pack_into(buffer, _MAX_TIMESTAMP_OFFSET, append_time)
        # Compute the checksum last, because it covers the fields that were just set.
        checksum = crc32c(memoryview(buffer)[ATTRIBUTES_OFFSET : header.size_bytes])
        struct.pack_into(">I", buffer, _CRC_OFFSET, checksum)


def _build_old_format_error(magic: int) -> UnsupportedFormatError:
    """Build the error for record format v0 or v1. The magic byte is the version number."""
    return UnsupportedFormatError(f"Record format v{magic} from before Kafka 0.11 is not supported. Only v2 is.")
