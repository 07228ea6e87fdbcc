"""The 61 bytes in front of a record batch (format v2).

    offset  bytes  field
         0      8  baseOffset              not in the CRC: the broker assigns it
         8      4  batchLength             of everything after this field
        12      4  partitionLeaderEpoch    not in the CRC either
        16      1  magic = 2
        17      4  crc                     CRC-32C of everything after this field
        21      2  attributes              bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 horizon
        23      4  lastOffsetDelta
        27      8  baseTimestamp
        35      8  maxTimestamp
        43      8  producerId
        51      2  producerEpoch
        53      4  baseSequence
        57      4  record count

The records are not touched by any of it: a batch that is sent again, or under another producer's identity, gets new
bytes here and a CRC over the segments, which are encoded once.
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
"""baseOffset and batchLength, which the length does not count."""
_LENGTH_OF_NOTHING = HEADER_BYTES - LENGTH_PREFIX_BYTES
_KEEP_INTERPRETER_LOCK = 0
"""Above 32 kB the package crc32c releases it. The checksum of 300 kB takes 20 us, and after it the sender's thread
waited until a caller's thread returned the lock: 3 to 9 % of the CPU of records in large batches."""
ATTRIBUTES_OFFSET = 21
_MAGIC = 2

COMPRESSION_CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_HEAD = struct.Struct(">qiibI")
_TAIL = struct.Struct(">hiqqqhii")
_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")


class BatchHeader(NamedTuple):
    """The fields in the order of the bytes."""

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
        return self.attributes & COMPRESSION_CODEC_MASK

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_PREFIX_BYTES


def encode_header(  # noqa: PLR0913 - the fields, each by its name; a tuple of them costs as much as the checksum
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
    """The bytes of a header in front of these records, which are compressed already if `attributes` name a codec."""
    tail = _TAIL.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    checksum = crc32c(tail)
    length = _LENGTH_OF_NOTHING
    for segment in segments:
        checksum = crc32c(segment, checksum, _KEEP_INTERPRETER_LOCK)
        length += len(segment)
    return _HEAD.pack(0, length, -1, _MAGIC, checksum) + tail


def parse_header(buffer: Buffer) -> BatchHeader:
    """The header at the start of `buffer`. Only what makes the rest readable is checked: length and magic."""
    if len(buffer) < HEADER_BYTES:
        if len(buffer) > 16 and buffer[16] < _MAGIC:
            raise _too_old(buffer[16])
        raise DecodeError(f"a record batch has a header of {HEADER_BYTES} bytes, here are {len(buffer)}")
    base_offset, batch_length, leader_epoch, magic, crc = _HEAD.unpack_from(buffer, 0)
    if magic in (0, 1):
        raise _too_old(magic)
    if magic != _MAGIC:
        raise UnsupportedFormatError(f"record format v{magic} is not known; v2 is")
    if batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise DecodeError(f"a record batch says that it is {batch_length} bytes long: less than its own header")
    return BatchHeader(
        base_offset, batch_length, leader_epoch, magic, crc, *_TAIL.unpack_from(buffer, ATTRIBUTES_OFFSET)
    )


def patch_header(
    buffer: bytearray | memoryview,
    *,
    base_offset: int | None = None,
    leader_epoch: int | None = None,
    append_time: int | None = None,
) -> None:
    """What a broker writes into a batch that it stores. Offset and epoch leave the CRC as it is.

    With `append_time` the batch gets the broker's clock in place of the records' own times; that one changes the CRC.
    """
    if base_offset is not None:
        _OFFSET.pack_into(buffer, 0, base_offset)
    if leader_epoch is not None:
        _LEADER_EPOCH.pack_into(buffer, 12, leader_epoch)
    if append_time is not None:
        header = parse_header(buffer)
        struct.pack_into(">h", buffer, ATTRIBUTES_OFFSET, header.attributes | LOG_APPEND_TIME)
        _OFFSET.pack_into(buffer, 35, append_time)
        end = header.size_bytes
        struct.pack_into(">I", buffer, 17, crc32c(memoryview(buffer)[ATTRIBUTES_OFFSET:end]))


def _too_old(magic: int) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"these are records of format v{magic}, from before Kafka 0.11; only v2 is spoken here"
    )
