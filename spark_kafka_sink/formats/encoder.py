"""Encode selected columns to the bytes of record values or keys.

The driver checks the column types, builds an encoder, and sends it to the tasks by pickling. A task encodes each Arrow
batch to one binary column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.formats.arrow_errors import convert_arrow_errors
from spark_kafka_sink.records.arrays import build_null_mask, numbers_to_arrow

_MAX_BATCH_BYTES = 32 << 20
"""Larger batches are split before encoding, so that the result stays below 2 GiB, the limit of an Arrow array."""


class RowFormat(Protocol):
    """Encodes rows in one format. Implementations are frozen dataclasses, so that they can be pickled."""

    def encode_rows(self, names: Sequence[str], columns: Sequence[pa.Array], row_count: int, header: bytes) -> pa.Array:
        """Return a binary array without nulls. Each row consists of `header` and the encoded columns."""
        ...


@dataclass(frozen=True)
class ColumnsEncoder:
    """Encodes the columns at `positions` or, if `parent` is set, these fields of the struct column at `parent`.

    `fields` contains the names and types as the driver sees them; only the tasks know the time zone of a timestamp.
    `header` precedes each encoded row. In formats with a schema registry, it contains the schema id. Alternatively,
    `record_header` is the name and value of a record header that contains the schema's GUID. `ignored_key_bytes` is how
    many bytes at the start of each key the partitioner ignores: the length of `header`, or 0.
    """

    format: RowFormat
    fields: tuple[pa.Field, ...]
    positions: tuple[int, ...]
    parent: int | None = None
    header: bytes = b""
    record_header: tuple[str, bytes] | None = None
    ignored_key_bytes: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def encode(self, batch: pa.RecordBatch) -> pa.ChunkedArray:
        """Encode each row of a batch to a binary value. If the struct `parent` is null in a row, the result is null."""
        return pa.chunked_array(self._encode_chunks(batch), pa.binary())

    def _encode_chunks(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if batch.num_rows > 1 and batch.nbytes > _MAX_BATCH_BYTES:
            return self._encode_halves(batch)
        try:
            with convert_arrow_errors(*self.names):
                return [self._encode_rows(batch)]
        except (pa.ArrowCapacityError, RecordTooLargeError) as error:
            if batch.num_rows <= 1:
                raise RecordTooLargeError(
                    f"The row is too large to be encoded: {sanitize(str(error))}. Exclude large columns"
                ) from error
            return self._encode_halves(batch)

    def _encode_halves(self, batch: pa.RecordBatch) -> list[pa.Array]:
        half = batch.num_rows // 2
        return self._encode_chunks(batch.slice(0, half)) + self._encode_chunks(batch.slice(half))

    def _encode_rows(self, batch: pa.RecordBatch) -> pa.Array:
        if self.parent is None:
            columns = [batch.column(position) for position in self.positions]
            return self.format.encode_rows(self.names, columns, batch.num_rows, self.header)
        parent = batch.column(self.parent)
        fields = [parent.field(position) for position in self.positions]
        if not parent.null_count:
            return self.format.encode_rows(self.names, fields, batch.num_rows, self.header)
        # Spark sets all fields of a null struct to null, even those that the schema declares as not nullable. A format
        # would reject these nulls, so only structs that are not null are encoded.
        nulls = build_null_mask(parent)
        valid_mask = parent.is_valid()
        valid_rows = self.format.encode_rows(
            self.names, [field.filter(valid_mask) for field in fields], batch.num_rows - parent.null_count, self.header
        )
        return valid_rows.take(numbers_to_arrow(np.cumsum(~nulls) - 1, nulls))
