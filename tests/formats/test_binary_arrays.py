"""Operations on binary arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.formats import binary_arrays
from spark_kafka_sink.formats.binary_arrays import (
    _replace_in_text,
    choose_by_index,
    from_byte_table,
    replace_invalid_utf8,
    scatter_groups,
)
from spark_kafka_sink.formats.json_text import JsonFormat
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_fields import MessageField
from spark_kafka_sink.records import byte_column


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


def test_replaces_invalid_utf8_only_in_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing is slow, so a single invalid text must not make it necessary for all rows."""
    replaced_texts: list[bytes] = []

    def replace_and_record(text: bytes) -> bytes:
        replaced_texts.append(text)
        return _replace_in_text(text)

    monkeypatch.setattr(binary_arrays, "_replace_in_text", replace_and_record)
    texts = ["\u20ac".encode(), None, b"a"] * 1_000
    texts[1_500] = b"\xff"
    array = pa.array(texts).view(pa.string())
    expected = [*texts[:1_500], "\ufffd".encode(), *texts[1_501:]]
    for start in (0, 1, 1_499):
        replaced_texts.clear()
        assert replace_invalid_utf8(array[start:]).to_pylist() == expected[start:]
        assert b"\xff" in replaced_texts
        assert len(replaced_texts) <= 512


@pytest.mark.parametrize("row_format", [JsonFormat(), ProtobufFormat((MessageField("s", 1, type_name="string"),))])
def test_replacement_that_exceeds_arrow_limit_can_be_split(row_format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ArrowCapacityError makes the caller encode fewer rows at once."""
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 40)
    texts = pa.array([b"\xff" * 10, b"a" * 20]).view(pa.string())
    with pytest.raises(pa.ArrowCapacityError, match="50 bytes exceed the 40 bytes"):
        row_format.encode_rows(["s"], [texts], 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: choose_by_index(np.array([0, 1, 1]), [b"", b"a" * 20]),
        lambda: from_byte_table(np.zeros((3, 20), np.uint8)),
        lambda: scatter_groups([(np.array([0, 2]), pa.array([b"a" * 20] * 2)), (np.array([1]), pa.array([b"b"]))], 3),
    ],
)
def test_array_that_exceeds_arrow_limit_is_not_built(
    build: Callable[[], pa.Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow lets the offsets overflow, or raises an error that does not make the caller encode fewer rows at once."""
    assert len(build()) == 3
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 40)
    with pytest.raises(pa.ArrowCapacityError, match="bytes exceed the 40 bytes that 32-bit offsets can address"):
        build()
