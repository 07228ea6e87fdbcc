"""Serializers: what turns the key and the value of a ProducerRecord into bytes.

A serializer is any callable of (topic, object) that returns bytes, or None for null. Without one, bytes go as they are,
a str as UTF-8, None as null; everything else is an error at the call, because a guess would be read wrongly for years.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from spark_kafka_sink.errors import InvalidRecordError

Serializer = Callable[[str, object], "bytes | None"]


def serialize_plain(topic: str, value: object) -> bytes | None:
    """Bytes as they are, text as UTF-8, None as null."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidRecordError(
        f"Topic {topic}: {type(value).__name__} is neither bytes nor str. Pass a serializer to KafkaProducer."
    )


def serialize_json(topic: str, value: object) -> bytes | None:
    """JSON in UTF-8 without spaces; None as null, which is a tombstone and not the JSON text null."""
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(f"Topic {topic}: the object cannot be written as JSON: {error}") from error


def apply(serializer: Serializer, part: str, topic: str, value: object) -> bytes | None:
    """Call a serializer that we do not know: whatever it raises or returns becomes one clear error."""
    if serializer is serialize_plain and (value is None or type(value) is bytes):
        return value
    try:
        result = serializer(topic, value)
    except InvalidRecordError:
        raise
    except Exception as error:
        raise InvalidRecordError(f"Topic {topic}: the serializer of the {part} failed: {error!r}") from error
    if result is None or isinstance(result, bytes):
        return result
    raise InvalidRecordError(
        f"Topic {topic}: the serializer of the {part} returned {type(result).__name__}, which is not bytes."
    )
