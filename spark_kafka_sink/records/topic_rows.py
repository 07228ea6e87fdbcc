"""The rows of a batch, split by topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.columns import RecordColumns


class TopicRows(NamedTuple):
    """Rows of one batch for one topic, in their order. `topic` is None for rows whose topic is null."""

    topic: str | None
    columns: RecordColumns
    partition: int | pa.Array | None
    """One for all rows, or an array with one for each row; None if keys decide."""
    batch_indices: NDArray[np.int64] | None = None
    """Their row indices in the batch; None if all rows of the batch are here."""

    def slice(self, start: int, length: int) -> TopicRows:
        partition = self.partition.slice(start, length) if isinstance(self.partition, pa.Array) else self.partition
        batch_indices = None if self.batch_indices is None else self.batch_indices[start : start + length]
        return TopicRows(self.topic, self.columns.slice(start, length), partition, batch_indices)


class RowsByTopic(NamedTuple):
    """The rows of one batch by topic: the topics in order of appearance, and for each of them its rows."""

    topics: Sequence[str | None]
    parts: Iterable[TopicRows]
    """The rows of a topic are copied when its turn comes, so that only one copy exists at a time."""


def split_by_topic(topic: pa.Array, columns: RecordColumns, partition: int | pa.Array | None) -> RowsByTopic:
    """Split rows by their topics, without Python per row. Rows of a single topic are not copied."""
    topics, row_indices = _group(topic)
    if len(topics) == 1:
        return RowsByTopic(topics, [TopicRows(topics[0], columns, partition)])
    return RowsByTopic(topics, _take_parts(topics, row_indices, columns, partition))


def _take_parts(
    topics: Sequence[str | None],
    row_indices: Sequence[NDArray[np.int64]],
    columns: RecordColumns,
    partition: int | pa.Array | None,
) -> Iterator[TopicRows]:
    for topic, rows in zip(topics, row_indices, strict=True):
        indices = pa.array(rows)
        partitions = partition.take(indices) if isinstance(partition, pa.Array) else partition
        yield TopicRows(topic, columns.take(indices), partitions, rows)


def _group(topic: pa.Array) -> tuple[list[str | None], list[NDArray[np.int64]]]:
    """Return the topics in order of appearance, null among them, and the positions of the rows of each."""
    encoded = topic.dictionary_encode(null_encoding="encode")
    names: list[str | None] = encoded.dictionary.to_pylist()
    code = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    return names, np.split(order, ends[:-1])
