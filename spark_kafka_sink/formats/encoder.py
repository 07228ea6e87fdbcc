"""ColumnsEncoder: encodes selected columns as record values or keys, in any RowFormat.

The driver checks the column types, builds an encoder, and pickles it for the tasks. A task encodes each Arrow batch to
one binary column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.formats.arrow_errors import convert_arrow_errors
from spark_kafka_sink.records.arrays import build_null_mask, numbers_to_arrow

_MAX_BATCH_BYTES = 32 << 20
"""Larger batches are split, because their encoded form could exceed 2 GiB, the limit of an Arrow array."""


class RowFormat(Protocol):
    """Encodes rows in one format. Implementations are frozen dataclasses, so that they can be pickled."""

    def encode_rows(self, names: Sequence[str], columns: Sequence[pa.Array], row_count: int, prefix: bytes) -> pa.Array:
        """Return a binary array without nulls. Each row consists of `prefix` and the encoded columns."""
        ...


@dataclass(frozen=True)
class ColumnsEncoder:
    """Encodes selected columns of a batch, or selected fields of one of its struct columns."""

    format: RowFormat
    fields: tuple[pa.Field, ...]
    """Names and types of the encoded columns as the driver sees them. It does not know the time zones of timestamps."""
    positions: tuple[int, ...]
    """Positions of the encoded columns in the batch or, if `struct_position` is set, of the fields in the struct."""
    struct_position: int | None = None
    """Position of the struct column whose fields are encoded, or None if columns of the batch are encoded."""
    prefix: bytes = b""
    """Bytes that precede each encoded row. In formats with a schema registry, they contain the schema id."""
    record_header: tuple[str, bytes] | None = None
    """Name and value of a record header that contains the schema's GUID, as an alternative to `prefix`."""
    ignored_key_bytes: int = 0
    """Number of bytes at the start of each key that the partitioner ignores: the length of `prefix`, or 0."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def source_positions(self) -> tuple[int, ...]:
        """Positions of the columns in the batch that the encoder reads."""
        return self.positions if self.struct_position is None else (self.struct_position,)

    def encode(self, batch: pa.RecordBatch) -> pa.ChunkedArray:
        """Encode each row of a batch to a binary value. If fields of a struct are encoded, a null struct becomes null.

        A large batch results in several chunks, in the order of the rows. Raise RecordTooLargeError if a single row is
        too large to encode.
        """
        return pa.chunked_array(self._encode_chunks(batch), pa.binary())

    def _encode_chunks(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Encode a batch to one array, or to several arrays if one would be too large."""
        size_bytes = sum(batch.column(position).nbytes for position in self.source_positions)
        if batch.num_rows > 1 and size_bytes > _MAX_BATCH_BYTES:
            return self._encode_halves(batch)
        try:
            with convert_arrow_errors(*self.names):
                return [self._encode_rows(batch)]
        except (pa.ArrowCapacityError, RecordTooLargeError) as error:
            # Even a small batch can exceed 2 GiB once it is encoded, because a format may need many more bytes for a
            # value than Arrow does. In this case, encode the halves separately, down to single rows.
            if batch.num_rows <= 1:
                raise RecordTooLargeError(
                    f"The row is too large to encode: {sanitize(str(error))}. Exclude large columns"
                ) from error
            return self._encode_halves(batch)

    def _encode_halves(self, batch: pa.RecordBatch) -> list[pa.Array]:
        middle = batch.num_rows // 2
        return self._encode_chunks(batch.slice(0, middle)) + self._encode_chunks(batch.slice(middle))

    def _encode_rows(self, batch: pa.RecordBatch) -> pa.Array:
        """Encode a batch to one array. Raise pa.ArrowCapacityError or RecordTooLargeError if it would be too large."""
        if self.struct_position is None:
            columns = [batch.column(position) for position in self.positions]
            return self.format.encode_rows(self.names, columns, batch.num_rows, self.prefix)
        struct_column = batch.column(self.struct_position)
        fields = [struct_column.field(position) for position in self.positions]
        if not struct_column.null_count:
            return self.format.encode_rows(self.names, fields, batch.num_rows, self.prefix)
        # In a null struct, Spark sets all fields to null, even those that the schema declares as not nullable. A format
        # would reject these nulls, so encode only the structs that are not null.
        valid_mask = struct_column.is_valid()
        valid_fields = [field.filter(valid_mask) for field in fields]
        valid_count = batch.num_rows - struct_column.null_count
        encoded_rows = self.format.encode_rows(self.names, valid_fields, valid_count, self.prefix)
        return _insert_nulls(encoded_rows, build_null_mask(struct_column))


def _insert_nulls(valid_rows: pa.Array, null_mask: NDArray[np.bool_]) -> pa.Array:
    """Return an array with nulls where `null_mask` is True, and with the valid rows in order elsewhere."""
    # The index of a valid row is the number of valid rows before it. The indices of nulls are not used.
    # null_mask [False, True, False] -> [0, unused, 1]
    valid_row_indices = np.cumsum(~null_mask) - 1
    return valid_rows.take(numbers_to_arrow(valid_row_indices, null_mask))
