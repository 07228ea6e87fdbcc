"""ColumnsEncoder: which columns of a batch become the bytes of a record's value or key, and in which format.

It is made on the driver, where the columns are chosen and their types checked, and pickled to the tasks. A task hands
it each Arrow batch and gets one binary column back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.formats.arrow_errors import name_columns
from spark_kafka_sink.records.arrays import null_mask, numbers_to_arrow

_BYTES_MAX = 32 << 20
"""Of columns that are encoded in one call: what is made of them must stay below Arrow's limit of 2 GiB for an array."""


class RowFormat(Protocol):
    """How rows are written. Each format is a frozen dataclass, so that it can be pickled."""

    def encode_rows(self, names: Sequence[str], columns: Sequence[pa.Array], rows: int, header: bytes) -> pa.Array:
        """A binary array with `header` and then the bytes of each row; none is null."""
        ...


@dataclass(frozen=True)
class ColumnsEncoder:
    """`positions` are those of columns in a batch, or of fields in the struct column at position `parent`.

    `fields` are their names and types as the driver knows them; a timestamp has its time zone in the tasks only.
    `header` stands in front of each record: the id of its schema, where there is a schema registry.
    """

    format: RowFormat
    fields: tuple[pa.Field, ...]
    positions: tuple[int, ...]
    parent: int | None = None
    header: bytes = b""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def encode(self, batch: pa.RecordBatch) -> pa.ChunkedArray:
        """One row of bytes for each row of the batch; null where the struct at `parent` is null."""
        return pa.chunked_array(self._encoded(batch), pa.binary())

    def _encoded(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if batch.num_rows > 1 and batch.nbytes > _BYTES_MAX:
            return self._in_halves(batch)
        try:
            with name_columns(*self.names):
                return [self._rows(batch)]
        except (pa.ArrowCapacityError, RecordTooLargeError) as error:
            if batch.num_rows <= 1:
                raise RecordTooLargeError(
                    f"The row is too large to be encoded: {sanitize(str(error))}. Leave large columns out of it"
                ) from error
            return self._in_halves(batch)

    def _in_halves(self, batch: pa.RecordBatch) -> list[pa.Array]:
        half = batch.num_rows // 2
        return self._encoded(batch.slice(0, half)) + self._encoded(batch.slice(half))

    def _rows(self, batch: pa.RecordBatch) -> pa.Array:
        if self.parent is None:
            columns = [batch.column(position) for position in self.positions]
            return self.format.encode_rows(self.names, columns, batch.num_rows, self.header)
        parent = batch.column(self.parent)
        fields = [parent.field(position) for position in self.positions]
        if not parent.null_count:
            return self.format.encode_rows(self.names, fields, batch.num_rows, self.header)
        # Spark hands the fields of a null struct over as null, also those that the schema says are never null. So only
        # the structs that are there are encoded.
        nulls = null_mask(parent)
        there = parent.is_valid()
        rows = self.format.encode_rows(
            self.names, [field.filter(there) for field in fields], batch.num_rows - parent.null_count, self.header
        )
        return rows.take(numbers_to_arrow(np.cumsum(~nulls) - 1, nulls))
