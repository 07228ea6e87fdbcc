"""TopicRows: the rows of an Arrow batch, split by topic. Each call of send_columns() takes rows of one topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.columns import RecordColumns


class TopicRows(NamedTuple):
    """The rows of one batch that go to one topic, in the order of the batch."""

    topic: str | None
    """None if the topic of the rows is null."""
    columns: RecordColumns
    partition: int | pa.Array | None
    """The partition of all rows, or an array with one partition per row; None to let the partitioner choose."""
    batch_indices: NDArray[np.int64] | None = None
    """The index of each row in the batch; None if these are all rows of the batch."""

    def slice(self, start: int, length: int) -> TopicRows:
        """Return `length` rows from position `start` on, without copying them."""
        partition = self.partition.slice(start, length) if isinstance(self.partition, pa.Array) else self.partition
        batch_indices = None if self.batch_indices is None else self.batch_indices[start : start + length]
        return TopicRows(self.topic, self.columns.slice(start, length), partition, batch_indices)


class RowsByTopic(NamedTuple):
    """The topics of a batch, and the rows of each topic."""

    topics: Sequence[str | None]
    """The topics in the order in which they first appear. They include None if the topic of a row is null."""
    topic_rows: Iterable[TopicRows]
    """The rows of each topic. They are copied during the iteration, so that only one topic's copy exists at a time."""


def split_by_topic(topic: pa.Array, columns: RecordColumns, partition: int | pa.Array | None) -> RowsByTopic:
    """Split rows by topic. If there is only one topic, no rows are copied.

    `topic`: the topic of each row.
    `partition`: the partition of all rows, or an array with one partition per row; None if no row requests one.
    """
    topics, row_indices_by_topic = _group_by_topic(topic)
    if len(topics) == 1:
        return RowsByTopic(topics, [TopicRows(topics[0], columns, partition)])
    return RowsByTopic(topics, _iterate_topics(topics, row_indices_by_topic, columns, partition))


def _iterate_topics(
    topics: Sequence[str | None],
    row_indices_by_topic: Sequence[NDArray[np.int64]],
    columns: RecordColumns,
    partition: int | pa.Array | None,
) -> Iterator[TopicRows]:
    """Yield the rows of each topic, copied from the columns."""
    for topic, row_indices in zip(topics, row_indices_by_topic, strict=True):
        indices = numbers_to_arrow(row_indices)
        partitions = partition.take(indices) if isinstance(partition, pa.Array) else partition
        yield TopicRows(topic, columns.take(indices), partitions, row_indices)


def _group_by_topic(topic: pa.Array) -> tuple[list[str | None], list[NDArray[np.int64]]]:
    """Return the topics in the order in which they first appear, and the row indices of each topic.

    Null counts as a topic, too. No Python code runs per row. Spark strings may contain bytes that are not UTF-8.
    Such bytes are escaped with backslashes. No topic name may contain a backslash, so the producer rejects these rows.
    """
    encoded_topics = topic.dictionary_encode(null_encoding="encode")
    encoded_names: list[bytes | None] = encoded_topics.dictionary.cast(pa.large_binary()).to_pylist()
    names = [None if name is None else name.decode(errors="backslashreplace") for name in encoded_names]
    topic_indices = integers_to_numpy(encoded_topics.indices)
    order = np.argsort(topic_indices, kind="stable")
    ends = np.cumsum(np.bincount(topic_indices, minlength=len(names)))
    # topic_indices [0, 1, 0] -> order [0, 2, 1], ends [2, 3], row indices [0, 2] and [1]
    return names, np.split(order, ends[:-1])
