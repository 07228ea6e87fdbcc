"""The codecs of record batches, both ways.

    gzip    RFC 1952, one member
    snappy  xerial framing: a header of 16 bytes, then blocks, each after its length (int32); raw snappy is read too
    lz4     LZ4 frames with independent blocks and no dictionary; other readers take nothing else
    zstd    one frame

Compression is of a whole batch, at the moment it is closed. What is decompressed comes from a peer: `max_bytes` holds
whatever a header promises, so that a few bytes cannot become gigabytes.

gzip is in Python, snappy and zstd are in pyarrow. The package lz4 is loaded when it is used, so that the others work
where it is not installed. `require` finds out, before there are records.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import pyarrow as pa

from spark_kafka_sink.errors import DecodeError, MissingDependencyError, OptionFault, UnsupportedFormatError

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Codec(IntEnum):
    """The numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COMPRESSION_LEVELS: dict[Codec, tuple[int, int, int]] = {
    Codec.GZIP: (1, 9, -1),
    Codec.LZ4: (1, 17, 9),
    Codec.ZSTD: (-131072, 22, 3),
}
"""Lowest, highest and default level, as in the Java client."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1" + b"\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 << 10
_GZIP_MEMBERS_MAX = 16
"""Producers write one. Thousands of tiny ones would take time without giving bytes."""
_OF_PYARROW = (Codec.SNAPPY, Codec.ZSTD)
_SNAPPY_RATIO_MAX = 64
"""An element of snappy makes at most 64 bytes of its own 3."""
_STEP_BYTES = 1 << 20
_LZ4_FAST = 0


def require_codec(codec: Codec) -> None:
    """Raise MissingDependencyError if this Python cannot compress with the codec."""
    if codec is Codec.LZ4:
        _lz4_frame()
    elif codec in _OF_PYARROW and not pa.Codec.is_available(codec.name.lower()):
        name = codec.name.lower()
        raise MissingDependencyError(
            OptionFault(
                "compression.type",
                f"{name} is not part of the pyarrow of this Python ({{python}}): install the one of PyPI with "
                "`pip install --force-reinstall pyarrow`, or choose another {compression.type}.",
                {"python": sys.executable},
            )
        )


def compress(codec: Codec, segments: Sequence[Buffer], level: int | None = None) -> Buffer:
    """The segments one after the other, compressed. `level` None is the codec's default."""
    if codec is Codec.NONE:
        return _joined(segments)
    chosen = COMPRESSION_LEVELS[codec][2] if level is None and codec in COMPRESSION_LEVELS else level
    if codec is Codec.GZIP:
        stream = zlib.compressobj(-1 if chosen is None else chosen, zlib.DEFLATED, 31)
        return b"".join([*(stream.compress(segment) for segment in segments), stream.flush()])
    if codec is Codec.SNAPPY:
        return _compress_snappy(_joined(segments))
    if codec is Codec.LZ4:
        # The Java client's default, 9, means its fast compressor; the levels of this library start to differ at 3.
        return _compress_lz4(segments, _LZ4_FAST if chosen is None or chosen == 9 else chosen)
    return _zstd(3 if chosen is None else chosen).compress(_joined(segments), asbytes=True)  # type: ignore[no-any-return]


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """The bytes before compression: at most `max_bytes`, else DecodeError, as for anything that is not well-formed.

    What a codec gives is a bytearray of the caller's own; bytes that were not compressed come back as they are.
    """
    if codec == Codec.NONE:
        return data
    try:
        known = _DECOMPRESSORS[codec]
    except KeyError:
        raise UnsupportedFormatError(f"compression codec {codec} is not known") from None
    try:
        return known(data, max_bytes)  # type: ignore[no-any-return]
    except MissingDependencyError:
        raise
    except (zlib.error, OSError, ValueError, RuntimeError, EOFError) as error:
        raise DecodeError(f"{Codec(codec).name.lower()}: {error}") from error


class CompressionRatios:
    """How well each topic compresses: compressed bytes per byte, estimated as the Java client does.

    It goes up at once and comes down slowly: a batch that turns out too large costs more than one that could have
    been larger. Values are replaced whole, so a reader in another thread sees the old or the new one.
    """

    WORSE_STEP = 0.05
    BETTER_STEP = 0.005

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], float] = {}

    def get(self, topic: str, codec: int) -> float:
        return self._ratios.get((topic, codec), 1.0)

    def update(self, topic: str, codec: int, observed: float) -> float:
        current = self.get(topic, codec)
        if observed > current:
            current = max(current + self.WORSE_STEP, observed)
        elif observed < current:
            current = max(current - self.BETTER_STEP, observed)
        self._ratios[topic, codec] = current
        return current

    def reset(self, topic: str, codec: int, ratio: float = 1.0) -> None:
        """Begin anew from `ratio`, for instance after a broker found a batch too large."""
        self._ratios[topic, codec] = ratio


def _joined(segments: Sequence[Buffer]) -> Buffer:
    return segments[0] if len(segments) == 1 else b"".join(segments)


@cache
def _lz4_frame() -> Any:
    try:
        return import_module("lz4.frame")
    except ImportError as error:
        raise MissingDependencyError(
            OptionFault(
                "compression.type",
                "lz4 needs the Python package lz4, which is not installed in this Python ({python}): `pip install "
                "lz4`, or choose zstd, snappy or gzip.",
                {"python": sys.executable},
            )
        ) from error


@cache
def _snappy() -> Any:
    """The codec of snappy. It has no state, so all threads share one."""
    return pa.Codec("snappy")


@cache
def _zstd(level: int) -> Any:
    return pa.Codec("zstd", compression_level=level)


def _compress_lz4(segments: Sequence[Buffer], level: int) -> bytes:
    stream = _lz4_frame().LZ4FrameCompressor(block_linked=False, compression_level=level)
    parts = [stream.begin()]
    parts += [stream.compress(segment) for segment in segments]
    parts.append(stream.flush())
    return b"".join(parts)


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    snappy = _snappy()
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytearray:
    out = bytearray()
    rest: Buffer = data
    for _ in range(_GZIP_MEMBERS_MAX):
        stream = zlib.decompressobj(31)
        while part := stream.decompress(rest, _STEP_BYTES):
            _add(out, part, max_bytes)
            rest = stream.unconsumed_tail
        if not stream.eof:
            raise DecodeError("gzip: the stream ends in the middle")
        rest = stream.unused_data
        if not rest:
            return out
    raise DecodeError(f"gzip: more than {_GZIP_MEMBERS_MAX} members in one batch")


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytearray:
    view = memoryview(data)
    out = bytearray()
    if view[:8] != _XERIAL_MAGIC:
        _add(out, _snappy_block(view, max_bytes, max_bytes), max_bytes)
        return out
    if len(view) < len(_XERIAL_HEADER):
        raise DecodeError("snappy: the header of the framing is cut off")
    at = len(_XERIAL_HEADER)
    while at < len(view):
        end = at + 4 + int.from_bytes(view[at : at + 4], "big")
        if end > len(view) or at + 4 >= end:
            raise DecodeError("snappy: a block ends outside the batch")
        _add(out, _snappy_block(view[at + 4 : end], max_bytes - len(out), max_bytes), max_bytes)
        at = end
    return out


def _snappy_block(block: memoryview, room: int, max_bytes: int) -> Buffer:
    """A raw block begins with its size before compression, a varint."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise DecodeError("snappy: the size of a block has no end")
    if size > room:
        raise _too_large(max_bytes)
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise DecodeError("snappy: a block promises more than its bytes can hold")
    return memoryview(_snappy().decompress(block, decompressed_size=size))


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytearray:
    stream = _lz4_frame().LZ4FrameDecompressor()
    out = bytearray()
    fed: Buffer = data
    while not stream.eof:
        part = stream.decompress(fed, max_length=_STEP_BYTES)
        fed = b""
        if not part and stream.needs_input and not stream.eof:
            raise DecodeError("lz4: the frame ends in the middle")
        _add(out, part, max_bytes)
    if stream.unused_data:
        raise DecodeError("lz4: bytes follow the frame")
    return out


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress into a buffer of ours: `stream.read` leaks its buffer when the frame is corrupt (pyarrow 26).

    `pa.Codec.decompress` needs the exact size of the result, and frames written as a stream, as Java writes them, do
    not have it.
    """
    out = bytearray()
    step = memoryview(bytearray(_STEP_BYTES))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        while size := stream.readinto(step):
            _add(out, step[:size], max_bytes)
    return out


def _add(out: bytearray, part: Buffer, max_bytes: int) -> None:
    """The parts grow together in place: joined at the end they would be in memory twice."""
    if len(out) + len(part) > max_bytes:
        raise _too_large(max_bytes)
    out += part


def _too_large(max_bytes: int) -> DecodeError:
    return DecodeError(f"more than {max_bytes} bytes come out of the decompressed batch")


_DECOMPRESSORS: dict[int, Any] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
