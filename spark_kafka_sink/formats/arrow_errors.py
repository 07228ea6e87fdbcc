"""Conversion of Arrow's errors to this package's errors, which name the column and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import InvalidRecordError, SchemaError


@contextmanager
def convert_arrow_errors(*column_names: str) -> Iterator[None]:
    """Convert Arrow's errors to SchemaError if a type is unsupported, or to InvalidRecordError if a value is invalid.

    ArrowCapacityError and MemoryError are not converted, because the caller may retry with fewer rows.
    """
    try:
        yield
    except (pa.ArrowCapacityError, MemoryError):
        raise
    except pa.ArrowException as error:
        names = ", ".join(sanitize(name) for name in column_names)
        subject = f"{'column' if len(column_names) == 1 else 'columns'} {names}"
        reason = sanitize(str(error)).rstrip(".")
        if isinstance(error, pa.ArrowNotImplementedError):
            raise SchemaError(f"{subject} cannot be encoded: {reason}. Cast the column to another type") from error
        raise InvalidRecordError(
            f"{subject} cannot be encoded: {reason}. Correct the value, or filter these rows out"
        ) from error
