"""`pykafka verify`: check that the records in Kafka match the receipts in write reports.

A receipt lists the offsets that a write got in each partition, with a digest of the records that it wrote there. Writes
record receipts if their option `receipt` is set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.cli.client_options import (
    add_connection_arguments,
    build_reader_config,
    check_topics_readable,
    parse_client_options,
)
from spark_kafka_sink.cli.tables import print_table
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig
    from spark_kafka_sink.producer.results import OffsetRange
    from spark_kafka_sink.reader.reader import TopicReader
    from spark_kafka_sink.reports.receipts import FoundRecords, PartitionResult

COMMAND_HELP = "check that the records in Kafka match the receipts that writes recorded (option receipt)"
_HEADINGS = ("topic", "partition", "first offset", "last offset", "written", "found", "outcome")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument(
        "report_path",
        metavar="REPORT",
        help="file, directory or URI of the write reports (the value of the option reportPath)",
    )
    parser.add_argument("--job", metavar="ID", help="verify only the writes of this query or application")
    parser.add_argument("--last", type=int, metavar="N", help="verify only the latest N writes (default: all)")
    parser.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_uncommitted also reads records of open and aborted transactions (default: %(default)s)",
    )


class _VerifiedPartition(NamedTuple):
    topic: str
    partition: int
    result: PartitionResult


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.reports.store import read_reports, strip_query
    from spark_kafka_sink.reports.write_report import get_query_id, merge_report_ranges

    if args.last is not None and args.last < 1:
        raise ConfigurationError(f"--last must be at least 1, not {args.last}")
    reports = [report for report in read_reports(args.report_path) if args.job in (None, get_query_id(report))]
    ranges_by_topic = merge_report_ranges(reports[-args.last :] if args.last else reports)
    if not ranges_by_topic:
        raise ConfigurationError(f"{strip_query(args.report_path)}: no report of a write with rows")
    config = build_reader_config(parse_client_options(args))
    check_topics_readable(config, *ranges_by_topic)
    verified_partitions: list[_VerifiedPartition] = []
    for topic, written_ranges in sorted(ranges_by_topic.items()):
        topic_results = _verify_topic(config, args.isolation, topic, written_ranges)
        for partition, result in sorted(topic_results.items()):
            verified_partitions.append(_VerifiedPartition(topic, partition, result))
    return _print_results(verified_partitions)


def _verify_topic(
    config: ClientConfig, isolation: str, topic: str, written_ranges: dict[int, OffsetRange]
) -> dict[int, PartitionResult]:
    """Read the offset ranges that the reports name, and compare their records with the receipts.

    Return the result of each partition. A partition that does not exist counts as empty. Raise ConfigurationError if an
    open transaction hides records.
    """
    from spark_kafka_sink.reader.fetch import READ_UNCOMMITTED
    from spark_kafka_sink.reader.reader import TopicReader
    from spark_kafka_sink.reports.receipts import FoundRecords, compare_topic

    found_records = {partition: FoundRecords() for partition in written_ranges}
    # A digest includes the header keys, even those that are not valid UTF-8.
    with TopicReader(config, isolation=isolation, preserve_header_keys=True) as reader:
        existing_partitions = reader.partitions(topic)
        for partition in written_ranges.keys() - set(existing_partitions):
            found_records[partition].log_end_offset = 0
        readable_ranges = {
            partition: written_range
            for partition, written_range in written_ranges.items()
            if partition in existing_partitions and _is_comparable(written_range)
        }
        if readable_ranges:
            end_offsets = reader.end_offsets(topic, partitions=list(readable_ranges))
            # These ranges extend beyond the last readable record: the records are gone, or a transaction hides them.
            truncated_partitions = [
                partition
                for partition, written_range in readable_ranges.items()
                if end_offsets[partition] <= written_range.last_offset
            ]
            if truncated_partitions and isolation != READ_UNCOMMITTED:
                stable_offsets = {partition: end_offsets[partition] for partition in truncated_partitions}
                _check_open_transactions(config, topic, stable_offsets)
            _add_records(found_records, reader, topic, readable_ranges, end_offsets)
    return compare_topic(written_ranges, found_records)


def _is_comparable(written_range: OffsetRange) -> bool:
    """Return whether the report contains the range's offsets and digest. Without them, reading the range is useless."""
    return written_range.first_offset >= 0 and written_range.digest is not None


def _check_open_transactions(config: ClientConfig, topic: str, stable_offsets: dict[int, int]) -> None:
    """Raise ConfigurationError if an open transaction hides records from readers that use read_committed.

    `stable_offsets`: the end offset of each partition for such readers.
    """
    from spark_kafka_sink.reader.fetch import READ_UNCOMMITTED
    from spark_kafka_sink.reader.reader import TopicReader

    with TopicReader(config, isolation=READ_UNCOMMITTED) as reader:
        end_offsets = reader.end_offsets(topic, partitions=list(stable_offsets))
    for partition, stable_offset in sorted(stable_offsets.items()):
        if stable_offset < end_offsets[partition]:
            raise ConfigurationError(
                f"topic {topic}, partition {partition}: an open transaction hides the records from offset "
                f"{stable_offset} on. Verify again when it has ended, or use --isolation read_uncommitted."
            )


def _add_records(
    found_records: dict[int, FoundRecords],
    reader: TopicReader,
    topic: str,
    ranges: dict[int, OffsetRange],
    end_offsets: dict[int, int],
) -> None:
    """Read the ranges one after another, and add the records and each partition's offsets to `found_records`.

    Each range is limited to the part that its partition still contains.
    """
    beginning_offsets = reader.beginning_offsets(topic, partitions=list(ranges))
    for partition, written_range in sorted(ranges.items()):
        partition_records = found_records[partition]
        partition_records.log_start_offset = beginning_offsets[partition]
        partition_records.log_end_offset = end_offsets[partition]
        start = max(written_range.first_offset, beginning_offsets[partition])
        stop = min(written_range.last_offset + 1, end_offsets[partition])
        if start >= stop:  # the partition no longer contains any part of the range
            continue
        for table in reader.batches(topic, partitions=[partition], start={partition: start}, stop={partition: stop}):
            partition_records.add(table)


def _print_results(verified_partitions: Sequence[_VerifiedPartition]) -> int:
    """Print a line for each partition and the details of the results. Return the exit status: 1 if any failed."""
    rows = [
        (
            verified_partition.topic,
            verified_partition.partition,
            verified_partition.result.written_range.first_offset,
            verified_partition.result.written_range.last_offset,
            verified_partition.result.written_range.rows,
            verified_partition.result.found_count,
            verified_partition.result.outcome.value,
        )
        for verified_partition in verified_partitions
    ]
    print_table(_HEADINGS, rows)
    for verified_partition in verified_partitions:
        detail = verified_partition.result.detail
        if detail:
            print(f"\n{verified_partition.topic}, partition {verified_partition.partition}: {detail}.")
    return int(any(verified_partition.result.outcome.is_failure for verified_partition in verified_partitions))
