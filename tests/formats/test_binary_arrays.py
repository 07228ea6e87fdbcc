"""Operations on binary arrays."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.formats.binary_arrays import replace_invalid_utf8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\xc3", "a\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "\ufffd\ufffd"),  # a pair of encoded surrogates (CESU-8)
        (b"\xed\xa0A", "\ufffdA"),
    ],
)
def test_replaces_invalid_utf8_like_java(text: bytes, expected: str) -> None:
    """The expected strings are those of `new String(bytes, UTF_8)` in JDK 17."""
    texts = pa.array([b"\xe2\x82\xac", None, text, b""]).view(pa.string())
    assert replace_invalid_utf8(texts).to_pylist() == ["\u20ac".encode(), None, expected.encode(), b""]


def test_does_not_copy_valid_texts() -> None:
    for texts in (pa.array(["a", None, ""]), pa.array(["b", "\u20ac", None])[1:], pa.array([None], pa.string())):
        assert replace_invalid_utf8(texts).buffers() == texts.buffers()
    assert replace_invalid_utf8(pa.array([], pa.string())).to_pylist() == []


def test_checks_each_text_separately() -> None:
    texts = pa.array([b"\xe2\x82", b"\xac"]).view(pa.string())
    assert replace_invalid_utf8(texts).to_pylist() == ["\ufffd".encode()] * 2
