"""Round trips, size limits and errors of all codecs."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedFormatError
from spark_kafka_sink.records.compression import (
    COMPRESSION_LEVELS,
    Buffer,
    Codec,
    CompressionRatios,
    compress,
    decompress,
)

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


@given(st.sampled_from(list(Codec)), st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_decompresses_joined_segments(codec: Codec, parts: list[bytes], times: int) -> None:
    segments: list[Buffer] = [memoryview(part * times) for part in parts]
    whole = b"".join(segments)
    assert bytes(decompress(codec, compress(codec, segments), len(whole))) == whole


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 1 << 15, (1 << 15) + 1, 3 << 20])
def test_rejects_data_one_byte_above_limit(codec: Codec, size: int) -> None:
    data = compress(codec, [random.Random(size).randbytes(100) * (size // 100 + 1)])
    full = decompress(codec, data, 4 << 20)
    with pytest.raises(DecodeError, match=f"more than {len(full) - 1} bytes"):
        decompress(codec, data, len(full) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_rejects_decompression_bomb_with_little_memory(codec: Codec) -> None:
    bomb = compress(codec, [bytes(30 << 20)])
    assert len(bomb) < 2 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decompress(codec, bomb, 1 << 16)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_corrupt_data_raises_only_decode_error(codec: Codec) -> None:
    random_bytes = random.Random(codec)
    data = bytes(compress(codec, [random_bytes.randbytes(50) * 40]))
    for cut in range(len(data)):
        _decompress_or_decode_error(codec, data[:cut])
    for _ in range(300):
        changed = bytearray(data)
        changed[random_bytes.randrange(len(data))] ^= 1 << random_bytes.randrange(8)
        _decompress_or_decode_error(codec, bytes(changed))
        _decompress_or_decode_error(codec, random_bytes.randbytes(random_bytes.randrange(80)))


def _decompress_or_decode_error(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert len(decompress(codec, data, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_rejects_truncated_stream(codec: Codec) -> None:
    data = bytes(compress(codec, [random.Random(1).randbytes(5000)]))
    for cut in (1, 8, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(DecodeError):
            decompress(codec, data[:cut], 10_000)


@pytest.mark.parametrize("codec", CODECS)
def test_releases_memory_of_corrupt_batch(codec: Codec) -> None:
    data = bytearray(compress(codec, [random.Random(1).randbytes(300_000)]))
    data[200_000:] = b"\xff" * (len(data) - 200_000)
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(21):
            with contextlib.suppress(DecodeError):
                decompress(codec, bytes(data), 1_000_000)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 100_000


def test_snappy_writes_xerial_frames_and_reads_raw_blocks() -> None:
    whole = bytes(range(256)) * 300
    framed = bytes(compress(Codec.SNAPPY, [whole]))
    assert framed.startswith(XERIAL)
    raw = pa.Codec("snappy").compress(whole, asbytes=True)
    assert bytes(decompress(Codec.SNAPPY, raw, len(whole))) == whole
    assert bytes(decompress(Codec.SNAPPY, XERIAL + struct.pack(">i", len(raw)) + raw, len(whole))) == whole


def test_rejects_snappy_blocks_that_contain_nothing() -> None:
    """Each takes five bytes and the time of a call, so a batch could contain very many of them."""
    header = bytes(compress(Codec.SNAPPY, [b"v"]))[:16]
    with pytest.raises(DecodeError, match="contains nothing"):
        decompress(Codec.SNAPPY, header + b"\0\0\0\1\0", 100)


def test_rejects_snappy_block_with_impossible_size() -> None:
    promise = b"\xff\xff\xff\x7f" + b"\0" * 20
    with pytest.raises(DecodeError, match="uncompressed size that its compressed length cannot produce"):
        decompress(Codec.SNAPPY, promise, 1 << 30)
    with pytest.raises(DecodeError, match="header is truncated"):
        decompress(Codec.SNAPPY, XERIAL[:10], 1 << 30)
    with pytest.raises(DecodeError, match="exceeds the batch"):
        decompress(Codec.SNAPPY, XERIAL + b"\x7f\xff\xff\xff" + promise, 1 << 30)


def test_lz4_frames_have_independent_blocks() -> None:
    frame = bytes(compress(Codec.LZ4, [bytes(200_000), b"tail"]))
    information = lz4.frame.get_frame_info(frame)
    assert not information["block_linked"]
    assert information["block_size"] == 65536
    assert lz4.frame.decompress(frame) == bytes(200_000) + b"tail"


def test_joins_gzip_members_up_to_a_limit() -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6)) == b"onetwo"
    with pytest.raises(DecodeError, match="members"):
        decompress(Codec.GZIP, gzip.compress(b"") * 5000, 100)


@pytest.mark.parametrize("codec", list(COMPRESSION_LEVELS))
def test_supports_all_compression_levels_of_java_client(codec: Codec) -> None:
    low, high, default = COMPRESSION_LEVELS[codec]
    data = b"level" * 500
    for level in {low, low + 1, high - 1, high, default}:
        assert bytes(decompress(codec, compress(codec, [data], level), len(data))) == data


def test_higher_levels_compress_better() -> None:
    data = b"".join(b'{"id": %d, "name": "user-%d", "score": %d}' % (i, i % 97, i * i % 1013) for i in range(3_000))
    for codec, low, high in ((Codec.GZIP, 1, 9), (Codec.LZ4, 9, 12), (Codec.ZSTD, -50, 19)):
        assert len(compress(codec, [data], high)) < len(compress(codec, [data], low))
    assert len(compress(Codec.GZIP, [data])) == len(gzip.compress(data, 6))


def test_names_unknown_codec() -> None:
    with pytest.raises(UnsupportedFormatError, match="codec 7"):
        decompress(7, b"", 10)


def test_compression_ratio_rises_immediately_and_falls_slowly() -> None:
    ratios = CompressionRatios()
    assert ratios.get("t", Codec.LZ4) == 1.0
    assert ratios.update("t", Codec.LZ4, 0.5) == pytest.approx(0.995)
    assert ratios.update("t", Codec.LZ4, 0.994) == pytest.approx(0.994)
    assert ratios.update("t", Codec.LZ4, 0.995) == pytest.approx(1.044)
    assert ratios.update("t", Codec.LZ4, 1.5) == 1.5
    assert ratios.update("t", Codec.LZ4, 1.5) == 1.5
    assert ratios.get("t", Codec.ZSTD) == ratios.get("other", Codec.LZ4) == 1.0
    ratios.reset("t", Codec.LZ4)
    assert ratios.get("t", Codec.LZ4) == 1.0
