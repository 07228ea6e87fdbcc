"""`pykafka produce`: lines from stdin, or the columns of a Parquet or CSV file, into a topic.

Both are a table that send_table() takes. Lines are sent as they come: what stands ready is one batch. So nothing waits
in a pipe that is slow, and one that is fast makes large batches.
"""

from __future__ import annotations

import argparse
import sys
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, given_options, reach_to_write
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.progress_bar import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.producer.producer import KafkaProducer

HELP = "write lines from stdin, or the columns of a file, to a topic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="the topic to write to")
    add("--partition", type=int, metavar="N", help="write to this partition (default: by key; without a key, any)")
    add("--header", action="append", default=[], metavar="NAME=VALUE", help="header for each record; may be repeated")
    add("--key-separator", metavar="TEXT", help="the part of a line before it is the key (default: no keys)")
    add("--file", type=Path, metavar="FILE", help="a Parquet or CSV file, by its ending, instead of lines")
    add(
        "--value-column",
        default="value",
        metavar="NAME",
        help="column of the file with the values (default: %(default)s)",
    )
    add("--key-column", metavar="NAME", help="column of the file with the keys (default: key, if there is one)")
    add(
        "--timestamp-column",
        metavar="NAME",
        help="column of the file with the times (default: timestamp, if there is one)",
    )


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.produced_rows import InputColumns, rows_of_file, rows_of_lines
    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.producer import KafkaProducer

    headers = [_header(text) for text in chosen.header]
    if chosen.file is not None and chosen.key_separator is not None:
        raise ConfigurationError("--key-separator is of lines, and --file has none: name --key-column")
    options = {"client.id": "pykafka-produce", **given_options(chosen)}
    config = ProducerConfig.parse(options)
    if chosen.file is None:
        rows, total = rows_of_lines(_stdin(), chosen.key_separator, headers, config.max_request_size), None
    else:
        wanted = InputColumns(chosen.value_column, chosen.key_column, chosen.timestamp_column)
        rows, total = rows_of_file(chosen.file, wanted, headers)
    reach_to_write(config, chosen.topic)
    with Progress("records", total) as progress, KafkaProducer(options) as producer:
        _check_partition(producer, chosen)
        _send_all(producer, chosen, rows, progress)
    return 0


def _check_partition(producer: KafkaProducer, chosen: argparse.Namespace) -> None:
    """The producer would wait for max.block.ms: partitions may be added."""
    if chosen.partition is None:
        return
    count = len(producer.partitions_for(chosen.topic))
    if not 0 <= chosen.partition < count:
        raise ConfigurationError(
            f"--partition: {chosen.topic} has no partition {chosen.partition}, but 0 to {count - 1}"
        )


def _send_all(
    producer: KafkaProducer, chosen: argparse.Namespace, rows: pa.RecordBatchReader, progress: Progress
) -> None:
    """DeliveryError if a row was not written: no more are read then, and all that were are answered before."""
    from spark_kafka_sink.producer.table_plan import Mapped, plan_table
    from spark_kafka_sink.producer.tables import TableSender

    plan = plan_table(chosen.topic, rows.schema, Mapped(partition=chosen.partition), {})
    sender = TableSender(producer, plan, failed_rows_max=0)
    for answered in sender.steps(rows):
        progress.advance(answered)
    sender.result.raise_for_failures()


def _stdin() -> BufferedReader:
    stream = sys.stdin.buffer
    assert isinstance(stream, BufferedReader)
    return stream


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"--header is NAME=VALUE, not {text!r}")
    return name, value.encode()
