"""Varints: round trips, their bytes, and those that are too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.primitives import Reader, encode_unsigned_varint


@given(value=st.integers(0, (1 << 32) - 1))
def test_unsigned_varint_round_trip(value: int) -> None:
    assert Reader(encode_unsigned_varint(value)).read_unsigned_varint() == value


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16_383, "ff7f"), (0xFFFFFFFF, "ffffffff0f")],
)
def test_unsigned_varint_bytes(value: int, data: str) -> None:
    assert encode_unsigned_varint(value).hex() == data
    assert Reader(bytes.fromhex(data)).read_unsigned_varint() == value


def test_rejects_varint_that_is_too_long() -> None:
    with pytest.raises(DecodeError, match="within 5 bytes"):
        Reader(b"\x80" * 1_000_000).read_unsigned_varint()
    with pytest.raises(DecodeError, match="exceeds 32 bits"):
        Reader(b"\xff" * 4 + b"\x7f").read_unsigned_varint()
    with pytest.raises(DecodeError):
        Reader(b"").read_unsigned_varint()
