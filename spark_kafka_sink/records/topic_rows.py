"""The rows of a batch by their topics, where a column names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.columns import RecordColumns


class TopicRows(NamedTuple):
    """The rows of one batch that go to one topic, in their order. No topic: theirs is null."""

    topic: str | None
    columns: RecordColumns
    partition: pa.Array | None
    rows: NDArray[np.int64] | None = None
    """Their positions in the batch; None if all of them are here."""

    def slice(self, start: int, length: int) -> TopicRows:
        partition = None if self.partition is None else self.partition.slice(start, length)
        rows = None if self.rows is None else self.rows[start : start + length]
        return TopicRows(self.topic, self.columns.slice(start, length), partition, rows)


def by_topic(
    topic: pa.Array,
    columns: RecordColumns,
    partition: pa.Array | None,
    prefetch_topics: Callable[[Iterable[str]], object] | None = None,
) -> Iterator[TopicRows]:
    """The topics in order of appearance, each with its rows. No Python per row.

    `prefetch_topics` is called with all topics before the first rows, if there are several.
    """
    topics, rows_of = _group(topic)
    if prefetch_topics is not None and len(topics) > 1:
        prefetch_topics(name for name in topics if name is not None)
    for name, rows in zip(topics, rows_of, strict=True):
        if len(topics) == 1:
            yield TopicRows(name, columns, partition)
        else:
            indices = pa.array(rows)
            yield TopicRows(name, columns.take(indices), None if partition is None else partition.take(indices), rows)


def _group(topic: pa.Array) -> tuple[list[str | None], list[NDArray[np.int64]]]:
    """The topics in order of appearance, null among them, and for each the positions of its rows."""
    encoded = topic.dictionary_encode(null_encoding="encode")
    names: list[str | None] = encoded.dictionary.to_pylist()
    code = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    return names, np.split(order, ends[:-1])
