"""Split the rows of an Arrow batch by topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.columns import RecordColumns


class TopicRows(NamedTuple):
    """Rows of one batch that go to one topic, in batch order. `topic` is None for rows whose topic is null."""

    topic: str | None
    columns: RecordColumns
    partition: int | pa.Array | None
    """Partition of all rows, or an array with one partition per row. None if the partitioner chooses for each row."""
    batch_indices: NDArray[np.int64] | None = None
    """Index of each row in the batch, or None if these are all rows of the batch."""

    def slice(self, start: int, length: int) -> TopicRows:
        partition = self.partition.slice(start, length) if isinstance(self.partition, pa.Array) else self.partition
        batch_indices = None if self.batch_indices is None else self.batch_indices[start : start + length]
        return TopicRows(self.topic, self.columns.slice(start, length), partition, batch_indices)


class RowsByTopic(NamedTuple):
    """Topics of a batch in order of first appearance, and the rows of each topic."""

    topics: Sequence[str | None]
    topic_rows: Iterable[TopicRows]
    """Iterable that copies a topic's rows only when it reaches them, so that only one copy exists at a time."""


def split_by_topic(topic: pa.Array, columns: RecordColumns, partition: int | pa.Array | None) -> RowsByTopic:
    """Split rows by topic without running Python code per row. If there is only one topic, no rows are copied."""
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
    for topic, row_indices in zip(topics, row_indices_by_topic, strict=True):
        indices = numbers_to_arrow(row_indices)
        partitions = partition.take(indices) if isinstance(partition, pa.Array) else partition
        yield TopicRows(topic, columns.take(indices), partitions, row_indices)


def _group_by_topic(topic: pa.Array) -> tuple[list[str | None], list[NDArray[np.int64]]]:
    """Return the topics in order of first appearance, including null, and the row indices of each topic."""
    encoded_topics = topic.dictionary_encode(null_encoding="encode")
    names: list[str | None] = encoded_topics.dictionary.to_pylist()
    topic_indices = integers_to_numpy(encoded_topics.indices)
    order = np.argsort(topic_indices, kind="stable")
    ends = np.cumsum(np.bincount(topic_indices, minlength=len(names)))
    return names, np.split(order, ends[:-1])
