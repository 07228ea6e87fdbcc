"""ProducerRecord, and the checks of one record and of its topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, KafkaSinkError, RecordTooLargeError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import NOT_NAMED, named_partitions
from spark_kafka_sink.records.arrays import numbers_of
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, one_array
from spark_kafka_sink.records.cutting import invalid_rows, record_size_bounds
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.words import TOPIC_NAME_RULE, is_topic_name

Headers = Sequence[tuple[str, "bytes | None"]]
AnyHeaders = Mapping[str, "bytes | str | None"] | Iterable[tuple[str, "bytes | str | None"]]
"""What send("topic", ...) takes: a dictionary or tuples, and text, which is written as UTF-8."""

RECORD_SIZE_MAX = 38
"""Length, attributes, deltas and the lengths of key and value, at most; and 2, because null counts as -1 byte."""


class ProducerRecord(NamedTuple):
    """One record to send. Key and value are what the producer's serializers take; bytes and str need none."""

    topic: str
    value: object = None
    key: object = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


NO_FIELDS = (None,) * 5


def record_of(first: object, fields: tuple[Any, ...], callback: Any) -> tuple[ProducerRecord, Any]:
    """The record, and the callback, of a call of send(): of a topic and its fields, or of a record and a callback.

    `fields` are value, key, headers, partition and timestamp. InvalidRecordError with the right call, if it is neither.
    """
    value, key, headers, partition, timestamp_ms = fields
    if isinstance(first, str):
        return ProducerRecord(first, value, key, _headers_as_bytes(headers), partition, timestamp_ms), callback
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
    """A dictionary as tuples, text as UTF-8. Whatever else is there is refused with the record."""
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
    """The topic's name, if a broker could have a topic of that name."""
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise InvalidRecordError(f"{topic!r} is not the name of a topic: it takes {TOPIC_NAME_RULE}.")
    return topic


def check_columns(columns: object) -> None:
    if not isinstance(columns, RecordColumns):
        raise InvalidRecordError(
            f"send_columns() takes RecordColumns, not {type(columns).__name__}: write RecordColumns(value, key), whose "
            "columns are Arrow arrays."
        )


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
    """Whether a str can be written as UTF-8: one with a lone surrogate, as in some file names, cannot."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# The rows of one call of send_columns(), and which of them cannot be sent. They are found before anything is staged.
#
# What is large or wrong in itself is found first, so that no partition is sought for it: to hash a key of 100 MB that
# fails anyway would cost a second.


_NAMED_MAX = 5
"""At most this many of the missing partitions are named in one error."""


class BadRows(NamedTuple):
    """Rows of one call, by their positions in it, that fail for the same reason."""

    rows: NDArray[np.int64]
    error: KafkaSinkError


class Rows(NamedTuple):
    """What is left of a call, row by row: encoded size at most, the partition that the row names (see
    partitioner.named_partitions), and the position in the call."""

    columns: RecordColumns
    sizes: NDArray[np.int64]
    named: NDArray[np.int32] | None
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def highest_named(self) -> int:
        """Negative if no row names a partition that could exist."""
        return -1 if self.named is None else int(np.maximum.reduce(self.named, initial=-1))

    def without(self, bad: Sequence[BadRows]) -> Rows:
        if not bad:
            return self
        refused = np.concatenate([one.rows for one in bad])
        kept = np.flatnonzero(~np.isin(self.positions, refused))
        named = None if self.named is None else self.named[kept]
        return Rows(self.columns.take(kept), self.sizes[kept], named, self.positions[kept])


def rows_of_call(columns: RecordColumns, partition: int | ArrowColumn | None) -> Rows:
    """The rows of a call, with nothing checked yet. SchemaError if the column of partitions does not fit."""
    count = columns.num_rows
    return Rows(columns, record_size_bounds(columns), named_partitions(partition, count), np.arange(count))


def wrong_in_themselves(topic: str, rows: Rows, config: ProducerConfig) -> list[BadRows]:
    """Every bad row once, with the first of its faults."""
    limit = min(config.max_request_size - HEADER_BYTES, config.buffer_memory)
    invalid = invalid_rows(rows.columns)
    if not invalid and np.maximum.reduce(rows.sizes) <= limit:
        return []
    found: list[BadRows] = []
    good = np.ones(len(rows), np.bool_)
    for bad in invalid:
        newly = bad.rows[good[bad.rows]]
        good[newly] = False
        found.append(BadRows(rows.positions[newly], InvalidRecordError(f"Topic {topic}: {bad.reason}.")))
    large = np.flatnonzero(good & (rows.sizes > limit))
    if len(large):
        found.append(BadRows(rows.positions[large], too_large(topic, int(rows.sizes[large].max()), config)))
    return found


def without_their_partition(
    topic: str, rows: Rows, snapshot: ClusterSnapshot, asked: int | ArrowColumn | None
) -> list[BadRows]:
    """The rows that name a partition which the topic does not have. `asked` is what the caller gave as partition."""
    if rows.named is None or asked is None:
        return []
    info = snapshot.topics[topic]
    lowest = int(np.minimum.reduce(rows.named, initial=0))
    if lowest >= 0 and rows.highest_named < len(info.partitions) == info.partitions[-1].index + 1:
        return []
    known = [NOT_NAMED, *(partition.index for partition in info.partitions)]
    missing = rows.positions[~np.isin(rows.named, known)]
    if not len(missing):
        return []
    numbers = [asked] if isinstance(asked, int) else np.unique(numbers_of(one_array(asked))[missing]).tolist()
    words = _either([str(number) for number in numbers])
    return [BadRows(missing, no_such_partition(topic, words, len(info.partitions)))]


def ensure_named(rows: Rows) -> None:
    """With a partitioner of the user's own: it is a function of one record, and is not asked for rows."""
    if rows.named is None or np.minimum.reduce(rows.named, initial=0) == NOT_NAMED:
        raise ConfigurationError(
            "KafkaProducer(partitioner=...) is asked for each record of send(), but not for the rows of "
            "send_columns(). Give send_columns() the partition of each row, or make a producer without partitioner=."
        )


def too_large(topic: str, size: int, config: ProducerConfig) -> RecordTooLargeError:
    """`size` is what the record takes at most. The words name the limit that it exceeds, or both of them."""
    limits = [("max.request.size", config.max_request_size, size + HEADER_BYTES)]
    limits.append(("buffer.memory", config.buffer_memory, size))
    exceeded = [(name, limit) for name, limit, needed in limits if needed > limit]
    if len(exceeded) == 1:
        words = f"{exceeded[0][0]} allows ({exceeded[0][1]}). Raise it"
    else:
        words = " and ".join(f"{name} ({limit})" for name, limit in exceeded) + " allow. Raise both"
    return RecordTooLargeError(
        f"Topic {topic}: a record of up to {size} bytes is more than {words} to at least {size + HEADER_BYTES}."
    )


def no_such_partition(topic: str, asked: str, partition_count: int | None) -> InvalidRecordError:
    return InvalidRecordError(f"Topic {topic} has no partition {asked}: it has {partition_count}, numbered from 0.")


def _either(names: list[str]) -> str:
    """`2`; `2 or 3`; of many the first ones: `2, 3, 4, 5, 6 or 13 others`."""
    if len(names) > _NAMED_MAX + 1:
        names = [*names[:_NAMED_MAX], f"{len(names) - _NAMED_MAX} others"]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
