"""Serializers: what turns the key and the value of a ProducerRecord into bytes.

A serializer is any callable of (topic, object) that returns bytes, or None for null. Without one, bytes go as they are,
a str as UTF-8, None as null; everything else is an error at the call, because a guess would be read wrongly for years.

One that needs the headers is an object with a method `serialize(topic, headers, data)`, as in the Java client and in
kafka-python. `headers` is a list of the record's own: what the serializer adds to it, such as the id of a schema, is
sent with the record. The key is serialized before the value.

The serializers of numbers and UUIDs write the bytes of the Java client's serializers of these names, so that its
deserializers read them: numbers in big-endian, a UUID as its text.

    serialize_short     16 bits     ShortSerializer
    serialize_integer   32 bits     IntegerSerializer
    serialize_long      64 bits     LongSerializer
    serialize_float     32 bits     FloatSerializer
    serialize_double    64 bits     DoubleSerializer
    serialize_uuid      36 letters  UUIDSerializer
"""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import signature
from operator import index
from struct import Struct
from typing import Protocol, SupportsFloat, SupportsIndex
from uuid import UUID

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError
from spark_kafka_sink.producer.record import Headers, ProducerRecord, validate_headers

_PLAIN_TYPES = (bytes, str, bytearray, memoryview)
"""Types that need no serializer."""
_FLOAT, _DOUBLE = Struct(">f"), Struct(">d")

Serializer = Callable[[str, object], "bytes | None"]


class HeaderSerializer(Protocol):
    """A serializer that reads the record's headers, and may add to them."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
        """Return the bytes of `data`, or None for null."""
        ...


def serialize_plain(topic: str, value: object) -> bytes | None:
    """Bytes as they are, text as UTF-8, None as null."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise _needs_serializer(topic, value)


def _needs_serializer(topic: str, value: object) -> InvalidRecordError:
    return InvalidRecordError(
        f"{format_partition(topic)}: {type(value).__name__} is neither bytes nor str. Pass a serializer to "
        "KafkaProducer."
    )


def serialize_json(topic: str, value: object) -> bytes | None:
    """Serialize to JSON in UTF-8 without spaces.

    None becomes null, a tombstone, and not the JSON text null. NaN and infinities are an error, because JSON has no
    numbers for them.
    """
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(f"{format_partition(topic)}: the object cannot be written as JSON: {error}") from error


def serialize_short(topic: str, value: object) -> bytes | None:
    """Serialize an integer of 16 bits."""
    return _whole_number(topic, value, 2)


def serialize_integer(topic: str, value: object) -> bytes | None:
    """Serialize an integer of 32 bits."""
    return _whole_number(topic, value, 4)


def serialize_long(topic: str, value: object) -> bytes | None:
    """Serialize an integer of 64 bits."""
    return _whole_number(topic, value, 8)


def serialize_float(topic: str, value: object) -> bytes | None:
    """Serialize a floating-point number of 32 bits; the value is rounded to it."""
    return _floating_number(topic, value, _FLOAT)


def serialize_double(topic: str, value: object) -> bytes | None:
    """Serialize a floating-point number of 64 bits."""
    return _floating_number(topic, value, _DOUBLE)


def serialize_uuid(topic: str, value: object) -> bytes | None:
    """Serialize a uuid.UUID as text."""
    if value is None:
        return None
    if not isinstance(value, UUID):
        raise InvalidRecordError(f"{format_partition(topic)}: {type(value).__name__} is not a uuid.UUID.")
    return str(value).encode()


def _whole_number(topic: str, value: object, size: int) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidRecordError(f"{format_partition(topic)}: {type(value).__name__} is not a whole number.")
    number = index(value)
    try:
        return number.to_bytes(size, "big", signed=True)
    except OverflowError:
        raise InvalidRecordError(f"{format_partition(topic)}: {number} does not fit into {8 * size} bits.") from None


def _floating_number(topic: str, value: object, layout: Struct) -> bytes | None:
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
    """A producer's two serializers. What they raise or return becomes one clear error of the record."""

    def __init__(
        self, key: Serializer | HeaderSerializer | None = None, value: Serializer | HeaderSerializer | None = None
    ) -> None:
        self._key = _checked("key", key)
        self._value = _checked("value", value)
        self._need_headers = not (callable(self._key) and callable(self._value))
        self._are_plain = self._key is self._value is serialize_plain

    def check_types(self, record: ProducerRecord) -> None:
        """Raise InvalidRecordError for a key or a value that needs a serializer and has none."""
        _, value, key, _, _, _ = record
        if type(value) is bytes and (key is None or type(key) is bytes):
            return  # the usual case, in a fraction of the time
        if self._value is serialize_plain and not (value is None or isinstance(value, _PLAIN_TYPES)):
            raise _needs_serializer(record.topic, value)
        if self._key is serialize_plain and not (key is None or isinstance(key, _PLAIN_TYPES)):
            raise _needs_serializer(record.topic, key)

    def apply(self, record: ProducerRecord) -> tuple[bytes | None, bytes | None, Headers | None]:
        """Key, value and headers, as they are written. InvalidRecordError if that is not possible."""
        topic, value, key, headers, _, _ = record
        if self._are_plain and type(value) is bytes and (key is None or type(key) is bytes):
            return key, value, headers
        if not self._need_headers:
            key = _apply(self._key, "key", topic, [], record.key)
            return key, _apply(self._value, "value", topic, [], record.value), record.headers
        headers = list(record.headers or ())
        key = _apply(self._key, "key", topic, headers, record.key)
        value = _apply(self._value, "value", topic, headers, record.value)
        try:
            return key, value, validate_headers(topic, headers)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{error} A serializer has put it there.") from None


def _checked(part: str, serializer: Serializer | HeaderSerializer | None) -> Serializer | HeaderSerializer:
    if serializer is None:
        return serialize_plain
    if callable(serializer) or callable(getattr(serializer, "serialize", None)):
        if callable(serializer):
            _check_arguments(part, serializer)
        return serializer
    raise ConfigurationError(
        f"{part}_serializer is {serializer!r:.100}, but must be a function of (topic, object), or an object with a "
        "method serialize(topic, headers, data)."
    )


def _check_arguments(part: str, serializer: Serializer) -> None:
    """Refuse a function of one argument: json.dumps, and what kafka-python takes."""
    try:
        arguments = signature(serializer)
    except (TypeError, ValueError):
        return  # some functions that are written in C do not say which they take
    try:
        arguments.bind("topic", None)
    except TypeError:
        name = getattr(serializer, "__qualname__", type(serializer).__qualname__)
        raise ConfigurationError(
            f"{part}_serializer is {name}, which cannot be called with two arguments. A serializer is a function of "
            f"(topic, object) that returns bytes: for example lambda topic, {part}: json.dumps({part}).encode(), or "
            "serialize_json of spark_kafka_sink.producer.serializers."
        ) from None


def _apply(
    serializer: Serializer | HeaderSerializer,
    part: str,
    topic: str,
    headers: list[tuple[str, bytes | None]],
    value: object,
) -> bytes | None:
    try:
        result = serializer(topic, value) if callable(serializer) else serializer.serialize(topic, headers, value)
    except InvalidRecordError:
        raise
    except Exception as error:
        raise InvalidRecordError(
            f"{format_partition(topic)}: the serializer of the {part} failed: {error!r}"
        ) from error
    if result is None or isinstance(result, bytes):
        return result
    raise _not_bytes(topic, part, result)


def _not_bytes(topic: str, part: str, result: object) -> InvalidRecordError:
    advice = " Add .encode() to what it returns." if isinstance(result, str) else ""
    kind = type(result).__name__
    return InvalidRecordError(
        f"{format_partition(topic)}: the serializer of the {part} returned {kind}, which is not bytes.{advice}"
    )
