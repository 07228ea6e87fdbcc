"""Compression and decompression of record batches.

    gzip    RFC 1952, one member
    snappy  xerial framing: a header of 16 bytes, then blocks, each preceded by its length (int32). Raw snappy, without
            this framing, can also be read.
    lz4     LZ4 frames with independent blocks and no dictionary, because other clients cannot read any other frames
    zstd    one frame

A batch is compressed as a whole when it is closed. Batches to decompress come from a peer and are not trusted:
`max_bytes` limits the decompressed size, whatever size a header declares, so that a few bytes cannot expand to
gigabytes.

gzip comes with Python, snappy and zstd come with pyarrow. The lz4 package is imported on first use, so that the other
codecs work without it. `require_codec` checks whether a codec is available before there are any records.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from spark_kafka_sink.errors import DecodeError, MissingDependencyError, OptionProblem, UnsupportedFormatError

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Codec(IntEnum):
    """A compression codec. Its value is the number in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionLevels(NamedTuple):
    """The range of a codec's levels, and the default level."""

    minimum: int
    maximum: int
    default: int
    """The level to use if none is configured. gzip's default, -1, is outside of the range."""


COMPRESSION_LEVELS: dict[Codec, CompressionLevels] = {
    Codec.GZIP: CompressionLevels(minimum=1, maximum=9, default=-1),
    Codec.LZ4: CompressionLevels(minimum=1, maximum=17, default=9),
    Codec.ZSTD: CompressionLevels(minimum=-131072, maximum=22, default=3),
}
"""The levels of each codec that has levels, as in the Java client."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1" + b"\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 << 10
"""Number of uncompressed bytes per block that this module writes. Readers accept any size."""
_XERIAL_LENGTH_BYTES = 4
_MAX_INT32_VARINT_BYTES = 5
_GZIP_WBITS = 16 + zlib.MAX_WBITS
"""zlib's `wbits` for streams with the header and the trailer of gzip, with the largest window."""
_MAX_GZIP_MEMBERS = 16
"""Maximum number of members in a batch. Producers write only one.

The limit bounds the decompression time: thousands of tiny members would fit into few bytes, but take long to read.
"""
_PYARROW_CODECS = (Codec.SNAPPY, Codec.ZSTD)
_MAX_SNAPPY_RATIO = 64
"""Upper bound of the compression ratio: a snappy element of 3 bytes decompresses to at most 64 bytes."""
_READ_BYTES = 1 << 20
"""Maximum number of bytes that are decompressed before their total is compared with the limit again."""
_LZ4_FAST_LEVEL = 0
"""The level at which the lz4 package uses its fast compressor."""
_MALFORMED_DATA_ERRORS = (
    zlib.error,  # gzip
    OSError,  # pyarrow: snappy and zstd
    ValueError,  # pyarrow, whose ArrowInvalid is a ValueError
    RuntimeError,  # lz4
    EOFError,  # lz4
)
"""Errors that the compression libraries raise for malformed data."""


def require_codec(codec: Codec) -> None:
    """Raise MissingDependencyError if a codec is not available in this Python environment."""
    if codec is Codec.LZ4:
        try:
            _import_lz4_frame()
        except ImportError as error:
            raise MissingDependencyError(
                OptionProblem(
                    "compression.type",
                    "is lz4, which requires the package lz4. It is not installed in this Python ({python}). Install "
                    "it with `pip install lz4`, or choose zstd, snappy or gzip.",
                    {"python": sys.executable},
                )
            ) from error
    if codec in _PYARROW_CODECS and not pa.Codec.is_available(codec.name.lower()):
        name = codec.name.lower()
        raise MissingDependencyError(
            OptionProblem(
                "compression.type",
                f"is {name}, which pyarrow in this Python ({{python}}) was built without. Install pyarrow from PyPI "
                "with `pip install --force-reinstall pyarrow`, or choose another {compression.type}.",
                {"python": sys.executable},
            )
        )


def compress(codec: Codec, segments: Sequence[Buffer], level: int | None = None) -> Buffer:
    """Return the compressed concatenation of the segments. `level` defaults to the codec's default level."""
    if codec is Codec.NONE:
        return _join_segments(segments)
    if codec is Codec.SNAPPY:
        return _compress_snappy(_join_segments(segments))
    default_level = COMPRESSION_LEVELS[codec].default
    level = default_level if level is None else level
    if codec is Codec.GZIP:
        stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return b"".join([*(stream.compress(segment) for segment in segments), stream.flush()])
    if codec is Codec.LZ4:
        # For its default level, the Java client uses its fast compressor. The lz4 package uses its own fast compressor
        # for all levels below 3.
        return _compress_lz4(segments, _LZ4_FAST_LEVEL if level == default_level else level)
    return _create_zstd_codec(level).compress(_join_segments(segments), asbytes=True)  # type: ignore[no-any-return]


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Return the decompressed data: a new bytearray, or `data` itself if it is not compressed.

    Raise DecodeError if the data is malformed or decompresses to more than `max_bytes`, UnsupportedFormatError if the
    codec is unknown, and MissingDependencyError if its package is not installed.
    """
    if codec == Codec.NONE:
        return data
    try:
        decompressor = _DECOMPRESSORS[codec]
    except KeyError:
        raise UnsupportedFormatError(f"Compression codec {codec} is not supported.") from None
    try:
        return decompressor(data, max_bytes)  # type: ignore[no-any-return]
    except ImportError as error:  # only lz4 is imported on first use
        raise MissingDependencyError(
            "An lz4-compressed batch cannot be read: the package lz4 is not installed in this Python "
            f"({sys.executable}). Install it with `pip install lz4`."
        ) from error
    except _MALFORMED_DATA_ERRORS as error:
        raise DecodeError(f"{Codec(codec).name.lower()}: {error}") from error


class CompressionRatios:
    """Estimated ratio of compressed to uncompressed size, by topic and codec, computed as in the Java client.

    The estimate rises at once but falls slowly, because a batch that turns out too large costs more than a batch that
    could have been larger. Readers need no lock, because an update replaces a single number.
    """

    DETERIORATING_STEP = 0.05
    """The minimum increase of an estimate when a batch has a higher ratio."""
    IMPROVING_STEP = 0.005
    """The maximum decrease of an estimate when a batch has a lower ratio."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], float] = {}

    def get(self, topic: str, codec: int) -> float:
        """Return the current estimate, which is 1.0 before the first update."""
        return self._ratios.get((topic, codec), 1.0)

    def update(self, topic: str, codec: int, observed_ratio: float) -> float:
        """Adjust the estimate to the ratio of a batch that was just compressed. Return the new estimate."""
        estimated_ratio = self.get(topic, codec)
        if observed_ratio > estimated_ratio:
            estimated_ratio = max(estimated_ratio + self.DETERIORATING_STEP, observed_ratio)
        elif observed_ratio < estimated_ratio:
            estimated_ratio = max(estimated_ratio - self.IMPROVING_STEP, observed_ratio)
        self._ratios[topic, codec] = estimated_ratio
        return estimated_ratio

    def reset(self, topic: str, codec: int, ratio: float = 1.0) -> None:
        """Replace the estimate, for example after a broker has rejected a batch as too large."""
        self._ratios[topic, codec] = ratio


def _join_segments(segments: Sequence[Buffer]) -> Buffer:
    """Return the concatenation of the segments. A single segment is not copied."""
    return segments[0] if len(segments) == 1 else b"".join(segments)


@cache
def _import_lz4_frame() -> Any:
    return import_module("lz4.frame")


@cache
def _create_snappy_codec() -> Any:
    """Return the snappy codec. It has no state, so all threads share it."""
    return pa.Codec("snappy")


@cache
def _create_zstd_codec(level: int) -> Any:
    return pa.Codec("zstd", compression_level=level)


def _compress_lz4(segments: Sequence[Buffer], level: int) -> bytes:
    """Compress segments into a single lz4 frame with independent blocks."""
    stream = _import_lz4_frame().LZ4FrameCompressor(block_linked=False, compression_level=level)
    frame_parts = [stream.begin()]
    frame_parts += [stream.compress(segment) for segment in segments]
    frame_parts.append(stream.flush())
    return b"".join(frame_parts)


def _compress_snappy(data: Buffer) -> bytes:
    """Compress data into snappy blocks with xerial framing."""
    view = memoryview(data)
    snappy = _create_snappy_codec()
    blocks: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        blocks += [len(block).to_bytes(_XERIAL_LENGTH_BYTES, "big"), block]
    return b"".join(blocks)


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress all members of a gzip stream. Raise DecodeError if a member is truncated or there are too many."""
    decompressed = bytearray()
    remaining_data: Buffer = data
    for _ in range(_MAX_GZIP_MEMBERS):
        stream = zlib.decompressobj(_GZIP_WBITS)
        while chunk := stream.decompress(remaining_data, _READ_BYTES):
            _append(decompressed, chunk, max_bytes)
            remaining_data = stream.unconsumed_tail
        if not stream.eof:
            raise DecodeError("gzip: the stream is truncated")
        remaining_data = stream.unused_data
        if not remaining_data:
            return decompressed
    raise DecodeError(f"gzip: more than {_MAX_GZIP_MEMBERS} members in one batch")


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress blocks in xerial framing or, if the data has no xerial header, a single raw block."""
    view = memoryview(data)
    decompressed = bytearray()
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _append(decompressed, _decompress_snappy_block(view, max_bytes, max_bytes), max_bytes)
        return decompressed
    if len(view) < len(_XERIAL_HEADER):
        raise DecodeError("snappy: the xerial header is truncated")
    position = len(_XERIAL_HEADER)
    while position < len(view):
        block_start = position + _XERIAL_LENGTH_BYTES
        block_end = block_start + int.from_bytes(view[position:block_start], "big")
        is_empty = block_end <= block_start  # a valid block contains at least its uncompressed size
        if is_empty or block_end > len(view):
            raise DecodeError("snappy: a block is empty, or exceeds the batch")
        block = _decompress_snappy_block(view[block_start:block_end], max_bytes - len(decompressed), max_bytes)
        if not block:  # `max_bytes` would not limit the number of such blocks, each of which takes time to read
            raise DecodeError("snappy: a block contains nothing")
        _append(decompressed, block, max_bytes)
        position = block_end
    return decompressed


def _decompress_snappy_block(block: memoryview, remaining_bytes: int, max_bytes: int) -> Buffer:
    """Decompress a raw snappy block, which starts with its uncompressed size as a varint.

    Raise DecodeError if the declared size is malformed, exceeds `remaining_bytes` or cannot be true.

    `remaining_bytes`: the part of `max_bytes` that earlier blocks of the batch have not used.
    `max_bytes`: the limit for the whole batch, for the error message.
    """
    declared_bytes = 0
    for index, byte in enumerate(block[:_MAX_INT32_VARINT_BYTES]):
        declared_bytes |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise DecodeError("snappy: a block's uncompressed size is a malformed varint")
    # Check the declared size first, because the codec allocates this many bytes before it reads the block.
    if declared_bytes > remaining_bytes:
        raise _build_too_large_error(max_bytes)
    if declared_bytes > _MAX_SNAPPY_RATIO * len(block):
        raise DecodeError("snappy: a block declares an uncompressed size that its compressed length cannot produce")
    return memoryview(_create_snappy_codec().decompress(block, decompressed_size=declared_bytes))


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress a single lz4 frame. Raise DecodeError if the frame is truncated or other bytes follow it."""
    stream = _import_lz4_frame().LZ4FrameDecompressor()
    decompressed = bytearray()
    unread_data: Buffer = data
    while not stream.eof:
        chunk = stream.decompress(unread_data, max_length=_READ_BYTES)
        unread_data = b""
        # If the decompressor has read all of the data but needs more, the frame is incomplete.
        if not chunk and stream.needs_input and not stream.eof:
            raise DecodeError("lz4: the frame is truncated")
        _append(decompressed, chunk, max_bytes)
    if stream.unused_data:
        raise DecodeError("lz4: bytes follow the frame")
    return decompressed


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress a zstd frame."""
    # Read into a buffer of our own, because `stream.read` leaks its buffer if the frame is corrupt (pyarrow 26).
    # `pa.Codec.decompress` is no alternative: it needs the exact decompressed size, which the Java client's frames do
    # not contain.
    decompressed = bytearray()
    buffer = memoryview(bytearray(_READ_BYTES))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        while size := stream.readinto(buffer):
            _append(decompressed, buffer[:size], max_bytes)
    return decompressed


def _append(decompressed: bytearray, chunk: Buffer, max_bytes: int) -> None:
    """Append a chunk to `decompressed`, in place. Raise DecodeError if this exceeds `max_bytes`."""
    # Joining all chunks at the end instead would need twice the memory.
    if len(decompressed) + len(chunk) > max_bytes:
        raise _build_too_large_error(max_bytes)
    decompressed += chunk


def _build_too_large_error(max_bytes: int) -> DecodeError:
    return DecodeError(f"the decompressed batch has more than {max_bytes} bytes")


_DECOMPRESSORS: dict[int, Any] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
