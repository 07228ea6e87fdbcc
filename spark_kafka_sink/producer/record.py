"""ProducerRecord, and the checks of one record and of its topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.words import TOPIC_NAME_RULE, is_topic_name

Headers = Sequence[tuple[str, "bytes | None"]]


class ProducerRecord(NamedTuple):
    """One record to send. Key and value are what the producer's serializers take; bytes and str need none."""

    topic: str
    value: object = None
    key: object = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


def check_topic(topic: object) -> str:
    """The topic's name, if a broker could have a topic of that name."""
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise InvalidRecordError(f"{topic!r} is not the name of a topic: it takes {TOPIC_NAME_RULE}.")
    return topic


def check_record(record: object) -> ProducerRecord:
    """The record with headers of its own: the caller's list may change later, and the record must not.

    Wrong types are refused at the call, where the traceback shows who is wrong.
    """
    if not isinstance(record, ProducerRecord):
        raise InvalidRecordError(f"send() takes a ProducerRecord, not {type(record).__name__}.")
    topic = check_topic(record.topic)
    partition, timestamp = record.partition, record.timestamp_ms
    if partition is not None and (not _is_int(partition) or partition < 0):
        raise InvalidRecordError(f"Topic {topic}: {partition!r} is not a partition: a number from 0 on is expected.")
    if timestamp is not None and (not _is_int(timestamp) or not 0 <= timestamp < 1 << 63):
        raise InvalidRecordError(f"Topic {topic}: {timestamp!r} is not a timestamp: milliseconds since 1970.")
    return record if record.headers is None else record._replace(headers=checked_headers(topic, record.headers))


def header_bytes(headers: Headers | None) -> int:
    """How much the headers take at most."""
    if not headers:
        return 5
    return 5 + sum(10 + 3 * len(key) + len(value or b"") for key, value in headers)


def checked_headers(topic: str, headers: object) -> Headers:
    """The headers as a tuple. InvalidRecordError if there is anything else than a str with bytes (or None) in them."""
    if not isinstance(headers, Iterable):
        raise InvalidRecordError(f"Topic {topic}: the headers are a list of tuples, not {type(headers).__name__}.")
    taken = tuple(headers)
    for header in taken:
        if not _is_header(header):
            raise InvalidRecordError(
                f"Topic {topic}: a header is a tuple of a str and bytes (or None), not {header!r:.100}."
            )
    return taken


def _is_header(header: object) -> bool:
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    key, value = header
    return isinstance(key, str) and _is_text(key) and (value is None or isinstance(value, bytes))


def _is_text(key: str) -> bool:
    """A lone surrogate, as in the name of a file that is not UTF-8, cannot be written."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
