"""Serializers and interceptors: a user's code may fail, and only its own record is the worse for it."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError
from spark_kafka_sink.producer.interceptors import Interceptors
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.serializers import (
    Serializer,
    Serializers,
    serialize_double,
    serialize_float,
    serialize_integer,
    serialize_json,
    serialize_long,
    serialize_plain,
    serialize_short,
    serialize_uuid,
)


@pytest.mark.parametrize(
    ("value", "wire"),
    [(b"b", b"b"), ("ü", "ü".encode()), (None, None), (bytearray(b"x"), b"x"), (memoryview(b"y"), b"y"), ("", b"")],
)
def test_bytes_and_text_need_no_serializer(value: object, wire: bytes | None) -> None:
    assert serialize_plain("t", value) == wire


@pytest.mark.parametrize("value", [1, 1.5, {"a": 1}, [b"x"], True])
def test_other_types_are_not_guessed_at(value: object) -> None:
    with pytest.raises(InvalidRecordError, match=f"{type(value).__name__} is neither bytes nor str"):
        serialize_plain("t", value)


UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")


@pytest.mark.parametrize(
    ("serializer", "value", "wire"),
    [
        (serialize_short, 258, b"\x01\x02"),
        (serialize_short, -32768, b"\x80\x00"),
        (serialize_integer, 1, b"\x00\x00\x00\x01"),
        (serialize_integer, -2, b"\xff\xff\xff\xfe"),
        (serialize_integer, np.int64(2**31 - 1), b"\x7f\xff\xff\xff"),
        (serialize_long, 2**40, b"\x00\x00\x01\x00\x00\x00\x00\x00"),
        (serialize_long, -(2**63), b"\x80\x00\x00\x00\x00\x00\x00\x00"),
        (serialize_float, 1.1, b"\x3f\x8c\xcc\xcd"),
        (serialize_float, np.float32(-0.5), b"\xbf\x00\x00\x00"),
        (serialize_double, 1.1, b"\x3f\xf1\x99\x99\x99\x99\x99\x9a"),
        (serialize_double, 3, b"\x40\x08\x00\x00\x00\x00\x00\x00"),
        (serialize_double, float("-inf"), b"\xff\xf0\x00\x00\x00\x00\x00\x00"),
        (serialize_uuid, UUID, b"123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_numbers_and_uuids_have_the_bytes_of_the_java_client_s_serializers(
    serializer: Serializer, value: object, wire: bytes
) -> None:
    assert serializer("t", value) == wire
    assert serializer("t", None) is None


@pytest.mark.parametrize(
    ("serializer", "value", "words"),
    [
        (serialize_short, 32768, "32768 does not fit into 16 bits"),
        (serialize_integer, 2**31, "does not fit into 32 bits"),
        (serialize_long, -(2**63) - 1, "does not fit into 64 bits"),
        (serialize_float, 1e39, "does not fit into 32 bits"),
        (serialize_double, 10**400, "does not fit into 64 bits"),
        (serialize_integer, 1.0, "float is not a whole number"),
        (serialize_long, True, "bool is not a whole number"),
        (serialize_double, "1", "str is not a number"),
        (serialize_float, False, "bool is not a number"),
        (serialize_uuid, str(UUID), "str is not a uuid.UUID"),
    ],
)
def test_what_a_serializer_cannot_write_is_an_error_that_names_topic_and_reason(
    serializer: Serializer, value: object, words: str
) -> None:
    with pytest.raises(InvalidRecordError, match=f"topic orders: .*{words}"):
        Serializers(value=serializer).apply(ProducerRecord("orders", value))


def test_json_is_compact_and_none_is_a_tombstone() -> None:
    assert serialize_json("t", {"k": ["ü", 1]}) == '{"k":["ü",1]}'.encode()
    assert serialize_json("t", None) is None
    with pytest.raises(InvalidRecordError, match="JSON"):
        serialize_json("t", {"k": object()})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_an_error_and_no_text_that_readers_refuse(number: float) -> None:
    with pytest.raises(InvalidRecordError, match="topic t: the object cannot be written as JSON"):
        serialize_json("t", {"price": [number]})


def test_a_serializer_that_raises_or_returns_no_bytes_is_one_clear_error() -> None:
    def broken(topic: str, value: object) -> bytes:
        raise ZeroDivisionError("oops")

    with pytest.raises(InvalidRecordError, match=r"topic orders: the serializer of the key failed: .*oops") as caught:
        Serializers(key=broken).apply(ProducerRecord("orders", key=1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(InvalidRecordError, match=r"the serializer of the value returned str.* Add \.encode\(\)"):
        Serializers(value=lambda topic, value: str(value)).apply(ProducerRecord("orders", 1))  # type: ignore[arg-type, return-value]
    assert Serializers().apply(ProducerRecord("orders", b"v", "k")) == (b"k", b"v", None)


class ById:
    """Writes the number of a schema into the headers, as a registry's serializers may, and reads what is there."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.seen: list[list[tuple[str, bytes | None]]] = []

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
        self.seen.append(list(headers))
        headers.append((f"{topic}-{self.part}-schema", b"7"))
        return None if data is None else str(data).encode()


def test_a_serializer_that_sees_the_headers_may_add_to_them_and_the_key_s_comes_first() -> None:
    key, value = ById("key"), ById("value")
    given = (("h", b"1"),)
    written = Serializers(key, value).apply(ProducerRecord("t", 5, None, headers=given))
    added = [("t-key-schema", b"7"), ("t-value-schema", b"7")]
    assert written == (None, b"5", (*given, *added))
    assert (key.seen, value.seen) == ([[*given]], [[*given, added[0]]])


def test_one_serializer_may_see_the_headers_while_the_other_does_not() -> None:
    written = Serializers(value=ById("value")).apply(ProducerRecord("t", 5, "k"))
    assert written == (b"k", b"5", (("t-value-schema", b"7"),))


def test_a_serializer_that_adds_no_header_is_named_in_the_error() -> None:
    class Wrong:
        def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
            headers.append(("h", "text"))  # type: ignore[arg-type]
            return b""

    with pytest.raises(InvalidRecordError, match=r"a header is a tuple .* not .*text.* A serializer has put it there"):
        Serializers(value=Wrong()).apply(ProducerRecord("t"))


@pytest.mark.parametrize("wrong", ["org.apache.kafka.common.serialization.StringSerializer", 5, object()])
def test_what_is_no_serializer_is_refused_when_the_producer_is_made(wrong: Serializer) -> None:
    with pytest.raises(ConfigurationError, match=r"value_serializer is .* must be a function of \(topic, object\)"):
        Serializers(value=wrong)


@dataclass(frozen=True)
class Record:
    value: str


class Adds:
    def __init__(self, text: str, seen: list[object]) -> None:
        self.text, self.seen = text, seen

    def on_send(self, record: Record) -> Record:
        return replace(record, value=record.value + self.text)

    def on_acknowledgement(self, metadata: object | None, error: Exception | None) -> None:
        self.seen.append((self.text, metadata, error))


class Breaks:
    def on_send(self, record: Record) -> Record:
        raise RuntimeError("no")

    def on_acknowledgement(self, metadata: object | None, error: Exception | None) -> None:
        raise RuntimeError("no")


def test_interceptors_run_in_order_and_one_that_raises_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []
    chain: Interceptors[Record, object] = Interceptors([Adds("a", seen), Breaks(), Adds("b", seen)])
    with caplog.at_level(logging.WARNING):
        assert chain.on_send(Record("x")) == Record("xab")
    error = ValueError("e")
    for acknowledgement in (chain.acknowledgements[0], chain.acknowledgements[2]):
        acknowledgement("m", error)
    assert seen == [("a", "m", error), ("b", "m", error)]
    assert caplog.text.count("Breaks") == 1


@pytest.mark.parametrize("function", [json.dumps, lambda value: json.dumps(value).encode()])
def test_a_serializer_of_one_argument_is_refused_with_what_to_write(function: Callable[..., bytes]) -> None:
    expected = r"value_serializer is .* two arguments.* lambda topic, value: json\.dumps\(value\)\.encode\(\), or "
    with pytest.raises(ConfigurationError, match=expected + "serialize_json"):
        Serializers(None, function)
