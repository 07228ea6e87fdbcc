"""`pykafka produce`: write lines of stdin, or columns of a Parquet or CSV file, to a topic.

Lines and columns are both sent the way KafkaProducer.send_table() sends a table. All lines that are available without
blocking go into one Arrow batch, so lines from a slow pipe are sent immediately, and lines from a fast pipe in large
batches.
"""

from __future__ import annotations

import argparse
import sys
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, check_write_access, parse_client_options
from spark_kafka_sink.errors import ConfigurationError, DataError
from spark_kafka_sink.producer.progress_bar import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.producer.producer import KafkaProducer

COMMAND_HELP = "write lines of stdin, or columns of a file, to a topic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--partition",
        type=int,
        metavar="N",
        help="write to this partition (default: chosen by key, or any partition without a key)",
    )
    parser.add_argument(
        "--header",
        dest="headers",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add this header to each record; may be repeated",
    )
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        help="text between the key and the value in a line (default: lines have no keys)",
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="read this file instead of stdin: .parquet, .csv or .tsv"
    )
    parser.add_argument(
        "--value-column",
        default="value",
        metavar="NAME",
        help="column of the file with the values (default: %(default)s)",
    )
    parser.add_argument(
        "--key-column", metavar="NAME", help="column of the file with the keys (default: key, if it exists)"
    )
    parser.add_argument(
        "--timestamp-column",
        metavar="NAME",
        help="column of the file with the timestamps (default: timestamp, if it exists)",
    )


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.input_rows import InputColumns, open_input_file, open_lines
    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.producer import KafkaProducer

    headers = [_parse_header(text) for text in args.headers]
    if args.key_separator == "":
        raise ConfigurationError("--key-separator must not be empty. Omit it if the lines have no keys.")
    if args.file is not None and args.key_separator is not None:
        raise ConfigurationError("--key-separator applies to lines, not to --file. Use --key-column instead.")
    options = {"client.id": "pykafka-produce", **parse_client_options(args)}
    config = ProducerConfig.parse(options)
    if args.file is None:
        rows = open_lines(_open_stdin(), args.key_separator, headers, config.max_request_size)
        row_count = None  # unknown until the input ends
    else:
        columns = InputColumns(args.value_column, args.key_column, args.timestamp_column)
        rows, row_count = open_input_file(args.file, columns, headers)
    check_write_access(config, args.topic)
    with Progress("records", row_count) as progress, KafkaProducer(options) as producer:
        _check_partition(producer, args)
        _send_all(producer, args, rows, progress)
    return 0


def _check_partition(producer: KafkaProducer, args: argparse.Namespace) -> None:
    """Raise ConfigurationError if the partition does not exist.

    Without this check, the producer would wait for max.block.ms, because the partition might still be added.
    """
    if args.partition is None:
        return
    partition_count = len(producer.partitions_for(args.topic))
    if not 0 <= args.partition < partition_count:
        raise ConfigurationError(
            f"--partition: topic {args.topic} has no partition {args.partition}: it has {partition_count}, numbered "
            "from 0"
        )


def _send_all(
    producer: KafkaProducer, args: argparse.Namespace, rows: pa.RecordBatchReader, progress: Progress
) -> None:
    """Send all rows. Raise DeliveryError if a row fails, or DataError if a row cannot be read and none fails.

    After a failure, no more rows are read. The error is raised once every row that was read is written or has failed.
    """
    from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table
    from spark_kafka_sink.producer.tables import TableSender, build_failures_error

    plan = plan_table(args.topic, rows.schema, ColumnMapping(partition=args.partition), table_options={})
    sender = TableSender(producer, plan, max_failed_rows=0)
    read_error = None
    try:
        for completed_count in sender.send_batches(rows):
            progress.advance(completed_count)
    except DataError as error:
        read_error = error
    if sender.result.failures:  # the first failed row precedes the row that cannot be read
        raise build_failures_error(sender.result, row_noun="line" if args.file is None else "row", first_number=1)
    if read_error is not None:
        raise read_error


def _open_stdin() -> BufferedReader:
    stream = sys.stdin.buffer
    assert isinstance(stream, BufferedReader)
    return stream


def _parse_header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"--header must be NAME=VALUE, not {text!r}")
    return name, value.encode()
