"""Comparison of a receipt with the records in a topic, to find missing, duplicated, altered or moved records.

A receipt consists of a report's offset ranges and a digest for each range. The digest is the sum of the written
records' hashes. If records were added to a range, the digest of its current records exceeds the receipt's digest by the
sum of the added records' hashes.

A partition that differs from its receipt goes undetected with a probability of about 2^-64. The records that cause the
difference can be located only if records were added and all written records are still present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import DIGEST_MODULUS, UInt64Array, compute_digest, hash_records

MAX_LOCATED_RECORDS = 10_000_000
"""Maximum number of records in a range in which extra records are located. Each record takes 16 bytes of memory."""


class ReceiptOutcome(Enum):
    """The result of comparing a partition's records with its receipt. `pykafka verify` prints the values."""

    INTACT = "intact"
    INTACT_WITH_OTHERS = "intact, with other records"
    MISSING = "missing"
    """There are fewer records than were written."""
    DUPLICATED = "duplicated"
    """All written records are there, some of them more than once."""
    ALTERED = "altered"
    """The number of records is right, but their content differs."""
    MOVED = "moved"
    """Records are in a different partition of the topic than the one they were written to."""
    EXTRA = "extra"
    """There are more records than were written, and the extra records could not be identified."""
    UNKNOWN = "unknown"
    """The report lacks the digest or offsets that a conclusion needs."""

    @property
    def is_failure(self) -> bool:
        return self not in (ReceiptOutcome.INTACT, ReceiptOutcome.INTACT_WITH_OTHERS)


@dataclass(frozen=True)
class PartitionResult:
    """The outcome for one partition, with an explanation."""

    outcome: ReceiptOutcome
    written_range: OffsetRange
    found_count: int
    detail: str


class ExtraRecords(NamedTuple):
    """Records in a receipt's offset range in addition to those that were written."""

    offsets: NDArray[np.int64]
    are_copies: bool
    """Whether each extra record is a copy of a written record."""


class FoundRecords:
    """The records found in a partition within the receipt's offset range: their count, digest and hashes."""

    def __init__(self) -> None:
        self.record_count = 0
        self.digest = 0
        self.log_start_offset = 0
        """First offset that is still available in the partition."""
        self.log_end_offset: int | None = None
        """Offset after the partition's last record; None if unknown."""
        self._chunks: list[tuple[NDArray[np.int64], UInt64Array]] = []
        """The records' offsets and hashes; empty if there are more than MAX_LOCATED_RECORDS records."""

    def add(self, table: pa.Table) -> None:
        """Add records in offset order. `table` has the columns of Spark's Kafka source."""
        hashes = hash_records(RecordColumns(table["value"], table["key"], table["headers"]))
        self.add_hashes(table["offset"].combine_chunks().to_numpy(zero_copy_only=False), hashes)

    def add_hashes(self, offsets: NDArray[np.int64], hashes: UInt64Array) -> None:
        """Add records by their offsets and hashes, in offset order."""
        self.record_count += len(offsets)
        self.digest = (self.digest + compute_digest(hashes)) % DIGEST_MODULUS
        if self.record_count <= MAX_LOCATED_RECORDS:
            self._chunks.append((offsets, hashes))
        else:
            # The extra records of a range this large are not located, so the memory can be freed.
            self._chunks.clear()

    def find_extra_records(self, count: int, digest: int) -> ExtraRecords | None:
        """Find `count` records whose hashes add up to `digest`. The rest are the records that the receipt describes.

        Try two explanations: `count` consecutive records are extra, or every record that repeats an earlier one is
        extra. Return None if neither applies, or if the range has more than MAX_LOCATED_RECORDS records.
        """
        if not self._chunks or not 0 < count <= self.record_count:
            return None
        offsets = np.concatenate([chunk_offsets for chunk_offsets, _ in self._chunks])
        hashes = np.concatenate([chunk_hashes for _, chunk_hashes in self._chunks])
        extra_positions = _find_consecutive_run(hashes, count, digest)
        if extra_positions is None:
            extra_positions = _find_later_copies(hashes)
            if len(extra_positions) != count or compute_digest(hashes[extra_positions]) != digest:
                return None
        other_hashes = np.delete(hashes, extra_positions)
        are_copies = bool(np.isin(hashes[extra_positions], other_hashes).all())
        return ExtraRecords(offsets[extra_positions], are_copies)


def _find_consecutive_run(hashes: UInt64Array, count: int, digest: int) -> NDArray[np.int64] | None:
    """Return the positions of the last run of `count` records whose hashes add up to `digest`, or None."""
    # A digest is a sum modulo 2^128, but numpy computes sums modulo 2^64, so these sums only find candidates.
    cumulative_sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes)])
    run_sums = cumulative_sums[count:] - cumulative_sums[:-count]  # at index i: the sum of hashes[i : i + count]
    candidate_starts = np.flatnonzero(run_sums == np.uint64(digest % (1 << 64)))
    for start in reversed(candidate_starts.tolist()):
        run = np.arange(start, start + count)
        if compute_digest(hashes[run]) == digest:
            return run
    return None


def _find_later_copies(hashes: UInt64Array) -> NDArray[np.int64]:
    """Return the positions of all records whose hash already occurs at an earlier position."""
    _, first_positions = np.unique(hashes, return_index=True)
    return np.delete(np.arange(len(hashes)), first_positions)


def compare_topic(
    written_ranges: Mapping[int, OffsetRange], records_by_partition: Mapping[int, FoundRecords]
) -> dict[int, PartitionResult]:
    """Compare a topic's receipt with the records found in its offset ranges. Return the result for each partition.

    If the partitions that differ from their receipts together contain exactly the written records, their outcome is
    MOVED.
    """
    results = {
        partition: compare_partition(written_range, records_by_partition[partition])
        for partition, written_range in written_ranges.items()
    }
    failed_partitions = [partition for partition, result in results.items() if result.outcome.is_failure]
    if _are_records_moved(failed_partitions, written_ranges, records_by_partition):
        detail = (
            "records are in a different partition than the one they were written to: the partitions "
            f"{sorted(failed_partitions)} together contain exactly the written records"
        )
        for partition in failed_partitions:
            found_count = records_by_partition[partition].record_count
            results[partition] = PartitionResult(ReceiptOutcome.MOVED, written_ranges[partition], found_count, detail)
    return results


def _are_records_moved(
    failed_partitions: Sequence[int],
    written_ranges: Mapping[int, OffsetRange],
    records_by_partition: Mapping[int, FoundRecords],
) -> bool:
    """Return whether the partitions together contain exactly the records that were written to them.

    This cannot be determined if the report lacks one of their digests.
    """
    # A moved record is missing from one partition and extra in another, so at least two partitions differ.
    if len(failed_partitions) < 2:
        return False
    extra_count = digest_difference = 0
    for partition in failed_partitions:
        written_range, found_records = written_ranges[partition], records_by_partition[partition]
        if written_range.digest is None:
            return False
        extra_count += found_records.record_count - written_range.rows
        digest_difference += found_records.digest - written_range.digest
    return extra_count == 0 and digest_difference % DIGEST_MODULUS == 0


def compare_partition(written_range: OffsetRange, found_records: FoundRecords) -> PartitionResult:
    """Compare a partition's receipt with the records found in its offset range.

    Rows whose offset is unknown may lie outside the range. If there are any, the outcomes MISSING and ALTERED become
    UNKNOWN.
    """
    outcome, detail = _determine_outcome(written_range, found_records)
    if written_range.rows_without_offset and outcome in (ReceiptOutcome.MISSING, ReceiptOutcome.ALTERED):
        outcome = ReceiptOutcome.UNKNOWN
        detail = (
            f"the broker returned no offsets for {format_count(written_range.rows_without_offset, 'row')}, for example "
            "because a retried batch was already stored. These rows may lie outside of the range"
        )
    return PartitionResult(outcome, written_range, found_records.record_count, detail)


def _determine_outcome(written_range: OffsetRange, found_records: FoundRecords) -> tuple[ReceiptOutcome, str]:
    """Return the outcome and its explanation, ignoring rows whose offset is unknown."""
    if written_range.digest is None:
        return ReceiptOutcome.UNKNOWN, "the report has no digest: set receipt=true for the write"
    if written_range.first_offset < 0:
        return ReceiptOutcome.UNKNOWN, "the report has no offsets: the broker did not return them"
    extra_count = found_records.record_count - written_range.rows
    digest_difference = (found_records.digest - written_range.digest) % DIGEST_MODULUS
    if extra_count < 0:
        cause = _describe_likely_cause(written_range, found_records)
        return ReceiptOutcome.MISSING, f"at least {format_count(-extra_count, 'record')} missing: {cause}"
    if not extra_count and not digest_difference:
        return ReceiptOutcome.INTACT, ""
    if not extra_count:
        return ReceiptOutcome.ALTERED, "the number of records is right, but at least one was altered or replaced"
    extra_records = found_records.find_extra_records(extra_count, digest_difference)
    if extra_records is None:
        return ReceiptOutcome.EXTRA, (
            f"at least {format_count(extra_count, 'record')} more than were written: duplicates, or records "
            "from other writers. They could not be identified, so written records may also be missing or altered"
        )
    location = _format_location(extra_records.offsets)
    if extra_records.are_copies:
        return ReceiptOutcome.DUPLICATED, f"{format_count(extra_count, 'record')} duplicated, {location}"
    return ReceiptOutcome.INTACT_WITH_OTHERS, f"{format_count(extra_count, 'record')} from other writers, {location}"


def _format_location(offsets: NDArray[np.int64]) -> str:
    """Describe where records are in their partition.

    `offsets`: the records' offsets, in ascending order.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    if len(offsets) == 1:
        return f"at offset {first:,}"
    if last - first == len(offsets) - 1:
        return f"at offsets {first:,} to {last:,}"
    return f"between offsets {first:,} and {last:,}"


def _describe_likely_cause(written_range: OffsetRange, found_records: FoundRecords) -> str:
    """Return the likely reason why records are missing."""
    start_offset, end_offset = found_records.log_start_offset, found_records.log_end_offset
    if start_offset > written_range.first_offset:
        return f"the partition now begins at offset {start_offset:,}, so retention or DeleteRecords has removed records"
    if end_offset is not None and end_offset <= written_range.last_offset:
        return f"the partition now ends at offset {end_offset:,}, so it was truncated or the topic recreated"
    return "they were lost, or compaction has removed them"
