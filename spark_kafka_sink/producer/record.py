"""ProducerRecord, and the checks of one record and of its topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.records.columns import RecordColumns

Headers = Sequence[tuple[str, "bytes | None"]]
AnyHeaders = Mapping[str, "bytes | str | None"] | Iterable[tuple[str, "bytes | str | None"]]
"""Headers that send() accepts: a dictionary or tuples. Text is written as UTF-8."""

MAX_RECORD_OVERHEAD_BYTES = 38
"""Length, attributes, deltas and the lengths of key and value, at most; and 2, because null counts as -1 byte."""


class ProducerRecord(NamedTuple):
    """One record to send. Key and value are what the producer's serializers take; bytes and str need none.

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


def parse_send_arguments(first: object, fields: tuple[Any, ...], callback: Any) -> tuple[ProducerRecord, Any]:
    """Return the record and the callback of a send() call with a topic and fields, or with a record and a callback.

    `fields`: value, key, headers, partition and timestamp.
    Raise InvalidRecordError, which shows a correct call, if the arguments are neither.
    """
    value, key, headers, partition, timestamp_ms = fields
    if isinstance(first, str):
        headers = None if headers is None else _headers_as_bytes(headers)
        return ProducerRecord(first, value, key, headers, partition, timestamp_ms), callback
    if not isinstance(first, ProducerRecord):
        raise InvalidRecordError(
            'send() takes a topic and its fields, send("topic", b"value", key=b"key"), or a ProducerRecord, '
            f"not {type(first).__name__}."
        )
    if value is None:
        value = callback
    elif callback is not None or not callable(value):
        raise InvalidRecordError("send() takes a ProducerRecord and a callback; value and key are the record's own.")
    if any(field is not None for field in fields[1:]):
        raise InvalidRecordError("send() takes a ProducerRecord and a callback; key and headers are the record's own.")
    return first, value


def _headers_as_bytes(headers: Any) -> Any:
    """Convert a dictionary to tuples and text to UTF-8. `validate_headers` rejects everything else."""
    if isinstance(headers, Mapping):
        headers = headers.items()
    if not isinstance(headers, Iterable):
        return headers
    return tuple(
        (header[0], header[1].encode())
        if isinstance(header, tuple) and len(header) == 2 and isinstance(header[1], str)
        else header
        for header in headers
    )


def check_topic(topic: object) -> str:
    """Return the topic's name. Raise InvalidRecordError if no broker can have a topic with this name."""
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise InvalidRecordError(f"{topic!r} is not the name of a topic: it takes {TOPIC_NAME_RULE}.")
    return topic


def check_columns(columns: object) -> None:
    if not isinstance(columns, RecordColumns):
        raise InvalidRecordError(
            f"send_columns() takes RecordColumns, not {type(columns).__name__}: write RecordColumns(value, key), whose "
            "columns are Arrow arrays."
        )


def validate_record(record: object) -> ProducerRecord:
    """Return the record with a copy of its headers, because the caller may change its list later.

    Wrong types are rejected in the call, where the traceback shows the caller.
    """
    if not isinstance(record, ProducerRecord):
        raise InvalidRecordError(f"send() takes a ProducerRecord, not {type(record).__name__}.")
    topic = check_topic(record.topic)
    partition, timestamp = record.partition, record.timestamp_ms
    if partition is not None and (not _is_int(partition) or partition < 0):
        raise InvalidRecordError(
            f"{format_partition(topic)}: {partition!r} is not a partition: a number from 0 on is expected."
        )
    if timestamp is not None and (not _is_int(timestamp) or not 0 <= timestamp < 1 << 63):
        raise InvalidRecordError(
            f"{format_partition(topic)}: {timestamp!r} is not a timestamp: milliseconds since 1970."
        )
    return record if record.headers is None else record._replace(headers=validate_headers(topic, record.headers))


def max_headers_bytes(headers: Headers | None) -> int:
    """Return the maximum encoded size of the headers."""
    if not headers:
        return 5
    return 5 + sum(10 + 3 * len(key) + len(value or b"") for key, value in headers)


def validate_headers(topic: str, headers: object) -> Headers:
    """Return the headers as a tuple. Raise InvalidRecordError unless each is a str with bytes or None."""
    if not isinstance(headers, Iterable):
        raise InvalidRecordError(
            f"{format_partition(topic)}: the headers are a list of tuples, not {type(headers).__name__}."
        )
    taken = tuple(headers)
    for header in taken:
        if not _is_header(header):
            raise InvalidRecordError(
                f"{format_partition(topic)}: a header is a tuple of a str and bytes (or None), not {header!r:.100}."
            )
    return taken


def _is_header(header: object) -> bool:
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    key, value = header
    return isinstance(key, str) and _is_text(key) and (value is None or isinstance(value, bytes))


def _is_text(key: str) -> bool:
    """Whether a str can be written as UTF-8: one with a lone surrogate, as in some file names, cannot."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
