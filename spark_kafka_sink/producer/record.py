"""ProducerRecord, and the validation of the arguments of send() and send_columns().

Arguments are validated during the call itself, so that the traceback of an error shows the caller's line. The
serializers check the keys and the values (serializers.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.records.columns import RecordColumns

Headers = Sequence[tuple[str, "bytes | None"]]
"""Validated headers: tuples of a name and a value, which may be null."""
AnyHeaders = Mapping[str, "bytes | str | None"] | Iterable[tuple[str, "bytes | str | None"]]
"""Headers that send() accepts: a mapping, or tuples of a name and a value. Text is encoded as UTF-8."""

_MAX_VARINT_BYTES = 5
"""Maximum encoded size of a length or a count."""
_MAX_UTF8_BYTES = 4
"""Maximum number of bytes that a character takes in UTF-8."""
MAX_RECORD_OVERHEAD_BYTES = 38
"""Maximum encoded size of a record without its key, value and headers.

It covers the record's length, its attributes, its offset and timestamp deltas, and the lengths of its key and value.
Two more bytes are included, because callers count a null key or value as -1 bytes.
"""


class ProducerRecord(NamedTuple):
    """A record to send.

    The key and the value may be any objects that the producer's serializers accept. bytes and str need no serializer.

    Example:

        record = ProducerRecord("orders", b"12.50", key=b"o-1", headers=[("trace", b"8f3a")])
        producer.send(record)
    """

    topic: str
    value: object = None
    key: object = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


EMPTY_FIELDS = (None,) * 5
"""The default value, key, headers, partition and timestamp of a send() call."""


def parse_send_arguments(topic_or_record: object, fields: tuple[Any, ...], callback: Any) -> tuple[ProducerRecord, Any]:
    """Convert the arguments of a send() call to a record and a callback, which may be None.

    A call passes either a topic and fields, or a ProducerRecord. In both cases, it may pass a callback. For other
    arguments, raise InvalidRecordError with a message that explains the correct call.

    `fields`: the value, key, headers, partition and timestamp that were passed to send().
    """
    value, key, headers, partition, timestamp_ms = fields
    if isinstance(topic_or_record, str):
        headers = None if headers is None else _encode_headers(headers)
        return ProducerRecord(topic_or_record, value, key, headers, partition, timestamp_ms), callback
    if not isinstance(topic_or_record, ProducerRecord):
        raise InvalidRecordError(
            'send() takes a topic and its fields, send("topic", b"value", key=b"key"), or a ProducerRecord, '
            f"not {type(topic_or_record).__name__}."
        )
    # In send(record, callback), the callback is in the position of the value.
    has_positional_callback = callback is None and callable(value)
    if value is not None and not has_positional_callback:
        raise InvalidRecordError(
            "send() takes a ProducerRecord and a callback. Pass the value and the key in the ProducerRecord."
        )
    if any(field is not None for field in fields[1:]):
        raise InvalidRecordError(
            "send() takes a ProducerRecord and a callback. Pass the key and the headers in the ProducerRecord."
        )
    return topic_or_record, callback if value is None else value


def _encode_headers(headers: Any) -> Any:
    """Convert headers in a mapping to tuples, and text values to UTF-8.

    Leave everything else unchanged. If it is invalid, validate_headers() rejects it later.
    """
    if isinstance(headers, Mapping):
        headers = headers.items()
    if not isinstance(headers, Iterable):
        return headers
    encoded_headers: list[Any] = []
    for header in headers:
        if isinstance(header, tuple) and len(header) == 2:
            name, value = header
            header = (name, value.encode()) if isinstance(value, str) else header
        encoded_headers.append(header)
    return tuple(encoded_headers)


def validate_topic(topic: object) -> str:
    """Return the topic name. Raise InvalidRecordError unless it is a name that Kafka allows."""
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise InvalidRecordError(f"{topic!r} is not a valid topic name. A topic name consists of {TOPIC_NAME_RULE}.")
    return topic


def check_columns(columns: object) -> None:
    """Raise InvalidRecordError if the columns passed to send_columns() are not RecordColumns."""
    if not isinstance(columns, RecordColumns):
        raise InvalidRecordError(
            f"send_columns() takes RecordColumns, not {type(columns).__name__}. Pass RecordColumns(value, key) with "
            "Arrow arrays as columns."
        )


def validate_record(record: object) -> ProducerRecord:
    """Return the record with a copy of its headers, because the caller may change the original after the call.

    Raise InvalidRecordError if the topic, partition, timestamp or headers are invalid. The serializers check the key
    and the value.
    """
    if not isinstance(record, ProducerRecord):
        raise InvalidRecordError(f"send() takes a ProducerRecord, not {type(record).__name__}.")
    topic = validate_topic(record.topic)
    partition, timestamp = record.partition, record.timestamp_ms
    if partition is not None and (not _is_int(partition) or partition < 0):
        raise InvalidRecordError(
            f"{format_partition(topic)}: {partition!r} is not a partition. A partition is an integer of 0 or more."
        )
    if timestamp is not None and (not _is_int(timestamp) or not 0 <= timestamp < 1 << 63):
        raise InvalidRecordError(
            f"{format_partition(topic)}: {timestamp!r} is not a timestamp. A timestamp is an integer of milliseconds "
            "since 1970."
        )
    return record if record.headers is None else record._replace(headers=validate_headers(topic, record.headers))


def compute_max_headers_bytes(headers: Headers | None) -> int:
    """Return an upper bound on the encoded size of the headers in bytes, including their count."""
    if not headers:
        return _MAX_VARINT_BYTES
    # A header is encoded as its key and its value, each with its length in front of it.
    return _MAX_VARINT_BYTES + sum(
        2 * _MAX_VARINT_BYTES + _MAX_UTF8_BYTES * len(key) + len(value or b"") for key, value in headers
    )


def validate_headers(topic: str, headers: object) -> Headers:
    """Return the headers as a tuple. Raise InvalidRecordError unless each is a tuple of a str and bytes (or None)."""
    if not isinstance(headers, Iterable):
        raise InvalidRecordError(
            f"{format_partition(topic)}: headers must be an iterable of (str, bytes | None) tuples, not "
            f"{type(headers).__name__}."
        )
    header_tuple = tuple(headers)
    for header in header_tuple:
        if not _is_header(header):
            raise InvalidRecordError(
                f"{format_partition(topic)}: a header must be a tuple of a str and bytes (or None), not "
                f"{_describe_header(header)}."
            )
    return header_tuple


def _describe_header(header: object) -> str:
    """Describe an invalid header by its types, because header values may be secrets."""
    if not isinstance(header, tuple):
        return type(header).__name__
    if len(header) == 2 and isinstance(header[0], str) and not _can_encode_as_utf8(header[0]):
        return f"one with the name {header[0]!r:.100}, which cannot be encoded as UTF-8"
    types = ", ".join(type(field).__name__ for field in header)
    return f"({types:.100})"


def _is_header(header: object) -> bool:
    """Return whether an object is a tuple of a str that can be encoded as UTF-8, and bytes or None."""
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    key, value = header
    return isinstance(key, str) and _can_encode_as_utf8(key) and (value is None or isinstance(value, bytes))


def _can_encode_as_utf8(text: str) -> bool:
    """Return whether a str can be encoded as UTF-8. A lone surrogate, as in some file names, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> bool:
    """Return whether a value is an int. A bool is one in Python, but would be a mistake here."""
    return isinstance(value, int) and not isinstance(value, bool)
