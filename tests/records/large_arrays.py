"""Arrays with 64-bit offsets above 2 GiB, which take little memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.arrays import MAX_OFFSET


def build_behind_2_gib(values: list[bytes | None], data_type: pa.DataType) -> pa.Array:
    """Return an array whose bytes are behind the first 2 GiB of its buffer, as in a slice of a large array.

    The first 2 GiB are never touched, so the operating system provides no memory for them.

    `data_type`: large_binary or large_string.
    """
    validity, offset_buffer, data = pa.array(values, pa.large_binary()).buffers()
    start = MAX_OFFSET + 1
    data_bytes = np.zeros(start + data.size, np.uint8)
    data_bytes[start:] = np.frombuffer(data, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int64, len(values) + 1) + start
    return pa.Array.from_buffers(data_type, len(values), [validity, pa.py_buffer(offsets), pa.py_buffer(data_bytes)])
