"""Arrow's errors as errors of a column: the one place where formats turn the former into the latter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import InvalidRecordError, SchemaError


@contextmanager
def name_columns(*names: str) -> Iterator[None]:
    """Raise an error of Arrow as one of these columns: SchemaError for a type, InvalidRecordError for a value.

    What does not fit into Arrow's arrays or into memory is left to the caller, who may encode fewer rows.
    """
    try:
        yield
    except (pa.ArrowCapacityError, MemoryError):
        raise
    except pa.ArrowException as error:
        columns = f"{'column' if len(names) == 1 else 'columns'} {', '.join(sanitize(name) for name in names)}"
        reason = sanitize(str(error)).rstrip(".")
        if isinstance(error, pa.ArrowNotImplementedError):
            raise SchemaError(f"{columns} cannot be written: {reason}. Cast the type to another one") from error
        raise InvalidRecordError(
            f"{columns} cannot be written: {reason}. Correct the value, or filter these rows out"
        ) from error
