"""Rows of a named call that are assigned to partitions and ready to be staged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.producer.batching.named_call import NamedCall


def assigned_rows(
    columns: RecordColumns,
    partitions: Sequence[int],
    call: object,
    *,
    sizes: Sequence[int] | None = None,
    row_indices: Sequence[int] | None = None,
) -> Rows:
    """Build rows from columns, with the size bounds of the encoder. By default, they are all rows of the call."""
    bounds = compute_record_size_bounds(columns) if sizes is None else np.array(sizes, np.int64)
    indices = np.arange(len(bounds)) if row_indices is None else np.array(row_indices, np.int64)
    return Rows(NamedCall(call), indices, columns, bounds, None).assign(np.array(partitions, np.int32))
