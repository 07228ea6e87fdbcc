"""ColumnPlan: determines how the fields of records are read from a batch of columns.

A field such as the key is either a column of the batch, or computed from several columns by an encoder (formats/). The
Spark sink builds a plan from the schema of a DataFrame (spark/columns.py). send_table() builds a plan from its
arguments and the schema of the table (table_plan.py). Plans are picklable: Spark tasks receive them from the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header_column import append_headers, find_last_header_values, read_header_column
from spark_kafka_sink.records.topic_rows import RowsByTopic, TopicRows, split_by_topic

if TYPE_CHECKING:  # a task imports the formats only if its plan has an encoder
    from spark_kafka_sink.formats.encoder import ColumnsEncoder


@dataclass(frozen=True)
class ColumnPlan:
    """For each record field, the position of its column in a batch, or the encoder that computes the field.

    If a field is None, it has no column. `fixed_topic` and `fixed_partition` apply to all rows, and take precedence
    over columns.
    """

    value: int | ColumnsEncoder
    key: int | ColumnsEncoder | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    fixed_topic: str | None = None
    fixed_partition: int | None = None

    @property
    def ignored_key_bytes(self) -> int:
        """The number of bytes at the start of each key that the partitioner ignores, such as those of a schema id."""
        return 0 if self.key is None or isinstance(self.key, int) else self.key.ignored_key_bytes

    def column_positions(self) -> list[int]:
        """Return the positions of all columns that records are built from, in ascending order."""
        used_positions: set[int] = set()
        for source in (self.value, self.key, self.topic, self.partition, self.headers, self.timestamp):
            if isinstance(source, int):
                used_positions.add(source)
            elif source is not None:
                used_positions.update(source.source_positions)
        return sorted(used_positions)

    def split(self, batch: pa.RecordBatch) -> RowsByTopic:
        """Build the records of a batch, and split them by topic. The rows of a topic keep their order.

        Raise a DataError if a column has a wrong type, or if a value cannot be encoded.
        """
        if not batch.num_rows:
            return RowsByTopic((), ())
        value_column = _read_or_encode(batch, self.value)
        key_column = None if self.key is None else _read_or_encode(batch, self.key)
        columns = RecordColumns(
            value=value_column,
            key=key_column,
            headers=self._build_headers_column(batch, value_column, key_column),
            timestamp=_get_column(batch, self.timestamp),
        )
        partition: int | ArrowColumn | None = self.fixed_partition
        if partition is None:
            partition = _get_column(batch, self.partition)
        if self.fixed_topic is not None:
            return RowsByTopic([self.fixed_topic], [TopicRows(self.fixed_topic, columns, partition)])
        return split_by_topic(batch.column(self.topic), columns, partition)

    def _build_headers_column(
        self, batch: pa.RecordBatch, value_column: ArrowColumn, key_column: ArrowColumn | None
    ) -> pa.Array | None:
        """Return the headers of each row: those in the headers column, followed by those that the encoders add.

        Return None if the batch has no headers column and no encoder adds a header.

        The header that an encoder adds contains the GUID of its schema. A null value or key gets no such header,
        because a null has no schema. A row that has the header already, such as a copy of a record, does not get it a
        second time. Confluent's serializers do the same.
        """
        headers_column = _get_column(batch, self.headers)
        record_headers = [
            (*record_header, encoded_column)
            for source, encoded_column in ((self.key, key_column), (self.value, value_column))
            if (record_header := _find_record_header(source)) is not None and encoded_column is not None
        ]
        if not record_headers:
            return headers_column
        has_headers = headers_column is not None and not pa.types.is_null(headers_column.type)
        original_headers = read_header_column(headers_column) if has_headers else None
        new_headers: dict[str, pa.Array] = {}
        for header_name, header_value, encoded_column in record_headers:
            needs_header = combine_chunks(encoded_column.is_valid())
            if original_headers is not None:
                # Consumers read only the last header, so an earlier one with the same GUID does not suffice.
                last_values = find_last_header_values(original_headers, header_name)
                is_present = pc.is_in(last_values, pa.array([header_value], pa.binary()))
                needs_header = pc.and_not(needs_header, is_present)
            new_headers[header_name] = pc.if_else(needs_header, pa.scalar(header_value, pa.binary()), None)
        return append_headers(original_headers, new_headers, batch.num_rows, key_type=pa.binary(), skip_nulls=True)


def _find_record_header(source: int | ColumnsEncoder | None) -> tuple[str, bytes] | None:
    """Return the name and the value of the header that an encoder adds to each record.

    Return None if the encoder adds no header, or if `source` is not an encoder.
    """
    return None if source is None or isinstance(source, int) else source.record_header


def _read_or_encode(batch: pa.RecordBatch, source: int | ColumnsEncoder) -> ArrowColumn:
    """Return the column at a position, or the column that an encoder computes from the batch."""
    return batch.column(source) if isinstance(source, int) else source.encode(batch)


def _get_column(batch: pa.RecordBatch, position: int | None) -> pa.Array | None:
    return None if position is None else batch.column(position)
