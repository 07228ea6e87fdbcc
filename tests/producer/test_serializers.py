"""Tests of serializers and interceptors, including user code that fails."""

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
    ("value", "serialized"),
    [(b"b", b"b"), ("ü", "ü".encode()), (None, None), (bytearray(b"x"), b"x"), (memoryview(b"y"), b"y"), ("", b"")],
)
def test_plain_serializer_accepts_bytes_and_text(value: object, serialized: bytes | None) -> None:
    assert serialize_plain("t", value) == serialized


@pytest.mark.parametrize("value", [1, 1.5, {"a": 1}, [b"x"], True])
def test_plain_serializer_rejects_other_types(value: object) -> None:
    with pytest.raises(InvalidRecordError, match=f"{type(value).__name__} is neither bytes nor str"):
        serialize_plain("t", value)


UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")


@pytest.mark.parametrize(
    ("serializer", "value", "serialized"),
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
def test_serializes_numbers_and_uuids_like_java_client(
    serializer: Serializer, value: object, serialized: bytes
) -> None:
    assert serializer("t", value) == serialized
    assert serializer("t", None) is None


@pytest.mark.parametrize(
    ("serializer", "value", "message"),
    [
        (serialize_short, 32768, "32768 does not fit into 16 bits"),
        (serialize_integer, 2**31, "does not fit into 32 bits"),
        (serialize_long, -(2**63) - 1, "does not fit into 64 bits"),
        (serialize_float, 1e39, "does not fit into 32 bits"),
        (serialize_double, 10**400, "does not fit into 64 bits"),
        (serialize_integer, 1.0, "float is not an integer"),
        (serialize_long, True, "bool is not an integer"),
        (serialize_double, "1", "str is not a number"),
        (serialize_float, False, "bool is not a number"),
        (serialize_uuid, str(UUID), "str is not a uuid.UUID"),
    ],
)
def test_names_topic_and_reason_of_unserializable_value(serializer: Serializer, value: object, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"topic orders: .*{message}"):
        Serializers(value=serializer).serialize(ProducerRecord("orders", value))


def test_serializes_compact_json_and_none_as_tombstone() -> None:
    assert serialize_json("t", {"k": ["ü", 1]}) == '{"k":["ü",1]}'.encode()
    assert serialize_json("t", None) is None
    with pytest.raises(InvalidRecordError, match="JSON"):
        serialize_json("t", {"k": object()})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_serializer_rejects_nan_and_infinities(number: float) -> None:
    with pytest.raises(InvalidRecordError, match="topic t: the object cannot be serialized to JSON"):
        serialize_json("t", {"price": [number]})


def test_converts_serializer_failure_to_invalid_record_error() -> None:
    def failing_serializer(topic: str, value: object) -> bytes:
        raise ZeroDivisionError("oops")

    with pytest.raises(InvalidRecordError, match=r"topic orders: the key serializer failed: .*oops") as raised:
        Serializers(key=failing_serializer).serialize(ProducerRecord("orders", key=1))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(InvalidRecordError, match=r"the value serializer returned str.* Call \.encode\(\)"):
        Serializers(value=lambda topic, value: str(value)).serialize(ProducerRecord("orders", 1))  # type: ignore[arg-type, return-value]
    assert Serializers().serialize(ProducerRecord("orders", b"v", "k")) == (b"k", b"v", None)


class SchemaIdSerializer:
    """Serializer that adds a schema id to the headers, as serializers of a registry may, and records the headers."""

    def __init__(self, field_name: str) -> None:
        self.field_name = field_name
        self.received_headers: list[list[tuple[str, bytes | None]]] = []

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
        self.received_headers.append(list(headers))
        headers.append((f"{topic}-{self.field_name}-schema", b"7"))
        return None if data is None else str(data).encode()


def test_sends_headers_added_by_serializers_key_first() -> None:
    key, value = SchemaIdSerializer("key"), SchemaIdSerializer("value")
    headers = (("h", b"1"),)
    result = Serializers(key, value).serialize(ProducerRecord("t", 5, None, headers=headers))
    added = [("t-key-schema", b"7"), ("t-value-schema", b"7")]
    assert result == (None, b"5", (*headers, *added))
    assert (key.received_headers, value.received_headers) == ([[*headers]], [[*headers, added[0]]])


def test_accepts_header_serializer_for_value_only() -> None:
    result = Serializers(value=SchemaIdSerializer("value")).serialize(ProducerRecord("t", 5, "k"))
    assert result == (b"k", b"5", (("t-value-schema", b"7"),))


def test_rejects_invalid_header_added_by_serializer() -> None:
    class InvalidHeaderSerializer:
        def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
            headers.append(("h", "text"))  # type: ignore[arg-type]
            return b""

    with pytest.raises(
        InvalidRecordError, match=r"a header must be a tuple .* not \(str, str\)\. A serializer added this header"
    ):
        Serializers(value=InvalidHeaderSerializer()).serialize(ProducerRecord("t"))


@pytest.mark.parametrize("invalid_serializer", ["org.apache.kafka.common.serialization.StringSerializer", 5, object()])
def test_rejects_object_that_is_not_a_serializer(invalid_serializer: Serializer) -> None:
    with pytest.raises(ConfigurationError, match=r"value_serializer must be a function of \(topic, object\)"):
        Serializers(value=invalid_serializer)


@dataclass(frozen=True)
class Record:
    value: str


class AppendingInterceptor:
    def __init__(self, text: str, acknowledgements: list[object]) -> None:
        self.text, self.acknowledgements = text, acknowledgements

    def on_send(self, record: Record) -> Record:
        return replace(record, value=record.value + self.text)

    def on_acknowledgement(self, metadata: object | None, error: Exception | None) -> None:
        self.acknowledgements.append((self.text, metadata, error))


class FailingInterceptor:
    def on_send(self, record: Record) -> Record:
        raise RuntimeError("no")

    def on_acknowledgement(self, metadata: object | None, error: Exception | None) -> None:
        raise RuntimeError("no")


def test_skips_interceptor_that_raises_and_keeps_order(caplog: pytest.LogCaptureFixture) -> None:
    acknowledgements: list[object] = []
    chain: Interceptors[Record, object] = Interceptors(
        [AppendingInterceptor("a", acknowledgements), FailingInterceptor(), AppendingInterceptor("b", acknowledgements)]
    )
    with caplog.at_level(logging.WARNING):
        assert chain.on_send(Record("x")) == Record("xab")
    error = ValueError("e")
    for acknowledgement in (chain.acknowledgement_callbacks[0], chain.acknowledgement_callbacks[2]):
        acknowledgement("m", error)
    assert acknowledgements == [("a", "m", error), ("b", "m", error)]
    assert caplog.text.count("FailingInterceptor") == 1


@pytest.mark.parametrize("function", [json.dumps, lambda value: json.dumps(value).encode()])
def test_rejects_serializer_of_one_argument_with_example(function: Callable[..., bytes]) -> None:
    message = (
        r"value_serializer must accept two arguments.* `lambda topic, value: json\.dumps\(value\)\.encode\(\)`, or "
    )
    with pytest.raises(ConfigurationError, match=message + r".*\.serialize_json"):
        Serializers(None, function)
