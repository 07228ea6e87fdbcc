"""Builders of batches as a broker stores them: at any offset, transactional, and control batches."""

from __future__ import annotations

import struct

from tests.records.batch_headers import build_header
from tests.records.reference_encoder import Row, reference_record

BASE_TIME = 1_700_000_000_000


def batch(
    offset: int,
    *values: bytes,
    producer_id: int = -1,
    transactional: bool = False,
    log_append_time: int | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """Build a batch of values with the keys k<offset> and timestamps one millisecond apart."""
    rows = [Row(value, b"k%d" % (offset + delta), headers) for delta, value in enumerate(values)]
    segment = b"".join(reference_record(row, delta, delta) for delta, row in enumerate(rows))
    header = build_header(
        segments=[segment],
        record_count=len(rows),
        base_timestamp=BASE_TIME,
        max_timestamp=log_append_time if log_append_time is not None else BASE_TIME + len(rows) - 1,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        transactional=transactional,
        base_offset=offset,
        log_append_time=log_append_time is not None,
    )
    return header + segment


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """Build the control batch that ends a transaction."""
    segment = reference_record(Row(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, int(commit))), 0, 0)
    header = build_header(
        segments=[segment],
        record_count=1,
        base_timestamp=BASE_TIME,
        max_timestamp=BASE_TIME,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
        base_offset=offset,
    )
    return header + segment


def compacted(first: int, last: int) -> bytes:
    """Build a batch from which compaction has removed all records."""
    return build_header(
        segments=[], record_count=0, base_timestamp=BASE_TIME, max_timestamp=BASE_TIME, base_offset=first,
        last_offset_delta=last - first,
    )  # fmt: skip
