"""Serializers, which convert the key and the value of a ProducerRecord to bytes.

A serializer is any callable that takes (topic, object) and returns bytes, or None for null. Without a serializer, bytes
are sent unchanged, a str is sent as UTF-8 and None as null. For any other type, send() raises an error, because a
guessed conversion could leave wrong bytes in the topic.

A serializer that needs the record's headers is an object with a method `serialize(topic, headers, data)`, as in the
Java client and in kafka-python. `headers` is a list of the record's headers. If the serializer adds headers to the
list, such as a schema id, they are sent with the record. The key is serialized before the value.

The serializers for numbers and UUIDs produce the same bytes as the Java serializers named below, so that Java's
deserializers can read them. Numbers are big-endian, and a UUID is written as text.

    serialize_short     16 bits     ShortSerializer
    serialize_integer   32 bits     IntegerSerializer
    serialize_long      64 bits     LongSerializer
    serialize_float     32 bits     FloatSerializer
    serialize_double    64 bits     DoubleSerializer
    serialize_uuid      36 bytes    UUIDSerializer
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from inspect import signature
from struct import Struct
from typing import Protocol, SupportsFloat, SupportsIndex
from uuid import UUID

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError
from spark_kafka_sink.producer.record import Headers, ProducerRecord, validate_headers

_PLAIN_TYPES = (bytes, str, bytearray, memoryview)
"""Types that need no serializer."""
_SHORT_BYTES, _INTEGER_BYTES, _LONG_BYTES = 2, 4, 8
_FLOAT_LAYOUT, _DOUBLE_LAYOUT = Struct(">f"), Struct(">d")

Serializer = Callable[[str, object], "bytes | None"]
"""A function that takes (topic, object) and returns the serialized bytes, or None for null."""


class HeaderSerializer(Protocol):
    """A serializer that can read the record's headers and add to them."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
        """Return the serialized bytes of `data`, or None for null."""
        ...


def serialize_plain(topic: str, value: object) -> bytes | None:
    """Return bytes unchanged, text as UTF-8, and None as null. Raise InvalidRecordError for other types."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise _build_missing_serializer_error(topic, value)


def _build_missing_serializer_error(topic: str, value: object) -> InvalidRecordError:
    """Build the error for a key or value that needs a serializer."""
    return InvalidRecordError(
        f"{format_partition(topic)}: {type(value).__name__} is neither bytes nor str. Pass a serializer to "
        "KafkaProducer."
    )


def serialize_json(topic: str, value: object) -> bytes | None:
    """Serialize an object to compact JSON in UTF-8.

    None becomes a null value (a tombstone), not the JSON text `null`. Raise InvalidRecordError for objects that JSON
    cannot represent, including NaN and infinities.
    """
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"{format_partition(topic)}: the object cannot be serialized to JSON: {error}"
        ) from error


def serialize_short(topic: str, value: object) -> bytes | None:
    """Serialize a signed 16-bit integer. None becomes null."""
    return _pack_integer(topic, value, _SHORT_BYTES)


def serialize_integer(topic: str, value: object) -> bytes | None:
    """Serialize a signed 32-bit integer. None becomes null."""
    return _pack_integer(topic, value, _INTEGER_BYTES)


def serialize_long(topic: str, value: object) -> bytes | None:
    """Serialize a signed 64-bit integer. None becomes null."""
    return _pack_integer(topic, value, _LONG_BYTES)


def serialize_float(topic: str, value: object) -> bytes | None:
    """Serialize a floating-point number, rounded to 32 bits. None becomes null."""
    return _pack_float(topic, value, _FLOAT_LAYOUT)


def serialize_double(topic: str, value: object) -> bytes | None:
    """Serialize a 64-bit floating-point number. None becomes null."""
    return _pack_float(topic, value, _DOUBLE_LAYOUT)


def serialize_uuid(topic: str, value: object) -> bytes | None:
    """Serialize a uuid.UUID as text. None becomes null."""
    if value is None:
        return None
    if not isinstance(value, UUID):
        raise InvalidRecordError(f"{format_partition(topic)}: {type(value).__name__} is not a uuid.UUID.")
    return str(value).encode()


def _pack_integer(topic: str, value: object, byte_count: int) -> bytes | None:
    """Encode a signed big-endian integer of `byte_count` bytes. None becomes null.

    Raise InvalidRecordError if the value is not an integer, or does not fit into these bytes.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidRecordError(f"{format_partition(topic)}: {type(value).__name__} is not an integer.")
    number = operator.index(value)
    try:
        return number.to_bytes(byte_count, "big", signed=True)
    except OverflowError:
        raise InvalidRecordError(
            f"{format_partition(topic)}: {number} does not fit into {8 * byte_count} bits."
        ) from None


def _pack_float(topic: str, value: object, layout: Struct) -> bytes | None:
    """Encode a floating-point number with the given layout. None becomes null.

    Raise InvalidRecordError if the value is not a number, or is too large for the layout.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise InvalidRecordError(f"{format_partition(topic)}: {type(value).__name__} is not a number.")
    try:
        return layout.pack(float(value))
    except OverflowError:
        raise InvalidRecordError(
            f"{format_partition(topic)}: {value} does not fit into {8 * layout.size} bits."
        ) from None


class Serializers:
    """The key and value serializers of a producer.

    If a serializer raises an exception, or returns anything other than bytes or None, the record fails with an
    InvalidRecordError.
    """

    def __init__(
        self, key: Serializer | HeaderSerializer | None = None, value: Serializer | HeaderSerializer | None = None
    ) -> None:
        self._key = _resolve_serializer("key", key)
        self._value = _resolve_serializer("value", value)
        self._has_header_serializer = not (callable(self._key) and callable(self._value))
        self._has_plain_serializers = self._key is self._value is serialize_plain

    def check_types(self, record: ProducerRecord) -> None:
        """Raise InvalidRecordError if the key or the value needs a serializer and has none."""
        value, key = record.value, record.key
        if type(value) is bytes and (key is None or type(key) is bytes):
            return  # a fast path for the usual case
        if self._value is serialize_plain and not (value is None or isinstance(value, _PLAIN_TYPES)):
            raise _build_missing_serializer_error(record.topic, value)
        if self._key is serialize_plain and not (key is None or isinstance(key, _PLAIN_TYPES)):
            raise _build_missing_serializer_error(record.topic, key)

    def serialize(self, record: ProducerRecord) -> tuple[bytes | None, bytes | None, Headers | None]:
        """Return the key, the value and the headers of a record in the form in which they are sent.

        Raise InvalidRecordError if a serializer fails, returns neither bytes nor None, or adds an invalid header.
        """
        topic, value, key, headers, _, _ = record
        if self._has_plain_serializers and type(value) is bytes and (key is None or type(key) is bytes):
            return key, value, headers  # a fast path for the usual case
        if not self._has_header_serializer:
            unused_headers: list[tuple[str, bytes | None]] = []  # functions do not get the headers
            key = _call_serializer(self._key, "key", topic, unused_headers, record.key)
            value = _call_serializer(self._value, "value", topic, unused_headers, record.value)
            return key, value, record.headers
        headers = list(record.headers or ())
        key = _call_serializer(self._key, "key", topic, headers, record.key)
        value = _call_serializer(self._value, "value", topic, headers, record.value)
        try:
            return key, value, validate_headers(topic, headers)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{error} A serializer added this header.") from None


def _resolve_serializer(part: str, serializer: Serializer | HeaderSerializer | None) -> Serializer | HeaderSerializer:
    """Return the serializer, or serialize_plain for None.

    `part`: the part of the record that is serialized, `key` or `value`.

    Raise ConfigurationError if the serializer is neither callable nor has a `serialize` method, or if it is callable
    but does not accept two arguments.
    """
    if serializer is None:
        return serialize_plain
    if callable(serializer):
        _check_accepts_topic_and_object(part, serializer)
        return serializer
    if callable(getattr(serializer, "serialize", None)):
        return serializer
    raise ConfigurationError(
        f"{part}_serializer must be a function of (topic, object), or an object with a method serialize(topic, "
        f"headers, data), not {serializer!r:.100}."
    )


def _check_accepts_topic_and_object(part: str, serializer: Serializer) -> None:
    """Raise ConfigurationError if the serializer cannot be called with (topic, object).

    A typical mistake is a function with one argument, such as json.dumps or a serializer of kafka-python.
    """
    try:
        serializer_signature = signature(serializer)
    except (TypeError, ValueError):
        return  # some functions written in C have no signature
    try:
        serializer_signature.bind("topic", None)
    except TypeError:
        name = getattr(serializer, "__qualname__", type(serializer).__qualname__)
        raise ConfigurationError(
            f"{part}_serializer must accept two arguments, (topic, object), and return bytes, but {name} does not. "
            f"Use for example `lambda topic, {part}: json.dumps({part}).encode()`, or "
            "spark_kafka_sink.producer.serializers.serialize_json."
        ) from None


def _call_serializer(
    serializer: Serializer | HeaderSerializer,
    part: str,
    topic: str,
    headers: list[tuple[str, bytes | None]],
    value: object,
) -> bytes | None:
    """Return the serialized bytes of a key or value, or None for null.

    `part`: `key` or `value`, for error messages.
    `headers`: the record's headers, to which a HeaderSerializer may add its own.

    Raise InvalidRecordError if the serializer raises an exception, or returns anything other than bytes or None.
    """
    try:
        serialized = serializer(topic, value) if callable(serializer) else serializer.serialize(topic, headers, value)
    except InvalidRecordError:
        raise
    except Exception as error:
        raise InvalidRecordError(f"{format_partition(topic)}: the {part} serializer failed: {error!r}") from error
    if serialized is None or isinstance(serialized, bytes):
        return serialized
    raise _build_invalid_result_error(topic, part, serialized)


def _build_invalid_result_error(topic: str, part: str, returned_object: object) -> InvalidRecordError:
    """Build the error for a serializer that returned neither bytes nor None. For a str, the message suggests a fix."""
    advice = " Call .encode() on the result." if isinstance(returned_object, str) else ""
    type_name = type(returned_object).__name__
    return InvalidRecordError(
        f"{format_partition(topic)}: the {part} serializer returned {type_name}, which is not bytes.{advice}"
    )
