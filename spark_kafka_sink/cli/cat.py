"""`pykafka cat`: print a topic's records and, with `--follow`, new records as they are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import (
    add_connection_arguments,
    build_reader_config,
    check_topics_readable,
    parse_client_options,
)
from spark_kafka_sink.cli.row_formats import COLUMNS, RowFormatter, TableFormatter, format_json_lines, format_text_lines
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.reader.reader import TopicReader

COMMAND_HELP = "print the records of a topic up to its current end, or continuously"
BEGINNING, END = "beginning", "end"
_START_FORMS = f"{BEGINNING}, {END}, an offset, -N (the last N of each partition) or a time such as 2026-05-01T12:00"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", help="the topic to read")
    parser.add_argument(
        "--partition",
        dest="partitions",
        type=int,
        action="append",
        metavar="N",
        help="read only this partition; may be repeated",
    )
    parser.add_argument(
        "--from",
        dest="start",
        default=BEGINNING,
        metavar="START",
        help=f"where to start: {_START_FORMS}, in UTC if it has no time zone (default: %(default)s)",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new records until interrupted")
    parser.add_argument("-n", "--max-messages", type=int, metavar="N", help="stop after N records")
    parser.add_argument(
        "--format",
        choices=("text", "json", "table"),
        default="text",
        help="text: the raw bytes, one line per record; json: all fields of each record (default: %(default)s)",
    )
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help=f"columns of text and table, separated by commas: {', '.join(COLUMNS)} (default: value for text, all for "
        "table)",
    )
    parser.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_uncommitted also shows records of open and aborted transactions (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.reader.reader import TopicReader

    columns = _parse_columns(args.columns, args.format)
    if args.max_messages is not None and args.max_messages < 0:
        raise ConfigurationError(f"--max-messages must be at least 0, not {args.max_messages}")
    config = build_reader_config(parse_client_options(args))
    start = _parse_start(args.start)
    check_topics_readable(config, args.topic)
    formatters: Mapping[str, RowFormatter] = {
        "text": format_text_lines,
        "json": format_json_lines,
        "table": TableFormatter(),
    }
    format_rows = formatters[args.format]
    remaining_count: int | None = args.max_messages  # None: no limit
    if remaining_count == 0:
        # Return here, because the loop would wait for records before it stops.
        return 0
    with TopicReader(config, isolation=args.isolation) as reader:
        start_offsets = _find_start_offsets(reader, args.topic, args.partitions, start)
        for table in reader.batches(args.topic, partitions=args.partitions, start=start_offsets, follow=args.follow):
            rows = table if remaining_count is None else table.slice(0, remaining_count)
            sys.stdout.buffer.writelines(format_rows(rows, columns))
            sys.stdout.buffer.flush()
            if remaining_count is not None:
                remaining_count -= rows.num_rows
                if remaining_count <= 0:
                    break
    return 0


def _parse_columns(names: str | None, output_format: str) -> Sequence[str]:
    """Return the columns to print. `names`: the value of --columns; None for the format's default columns."""
    if names is None:
        return COLUMNS if output_format == "table" else ("value",)
    columns = [name.strip() for name in names.split(",")]
    unknown_columns = [name for name in columns if name not in COLUMNS]
    if unknown_columns:
        raise ConfigurationError(f"--columns: {unknown_columns[0]!r} is not one of {', '.join(COLUMNS)}")
    return columns


def _parse_start(text: str) -> str | int | datetime:
    """Return BEGINNING, END, an offset (-N: the last N records) or a time, which is in UTC if it has no time zone."""
    if text in (BEGINNING, END):
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"--from must be {_START_FORMS}, not {text!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _find_start_offsets(
    reader: TopicReader, topic: str, partitions: Sequence[int] | None, start: str | int | datetime
) -> dict[int, int]:
    """Return the start offset of each partition, limited to the offsets that exist.

    Partitions without an entry are read from their beginning.
    """
    if start == BEGINNING:
        return {}
    if start == END:
        return reader.end_offsets(topic, partitions)
    if isinstance(start, datetime):
        # ListOffsets takes negative timestamps for special values, such as -1 for the end of the log.
        timestamp_ms = max(0, int(start.timestamp() * 1000))
        return reader.offsets_at(topic, timestamp_ms, partitions)
    offset_or_tail = int(start)  # -N means the last N records of each partition
    first_offsets = reader.beginning_offsets(topic, partitions)
    end_offsets = reader.end_offsets(topic, partitions)
    start_offsets: dict[int, int] = {}
    for partition, end_offset in end_offsets.items():
        offset = offset_or_tail if offset_or_tail >= 0 else end_offset + offset_or_tail
        start_offsets[partition] = max(first_offsets[partition], min(offset, end_offset))
    return start_offsets
