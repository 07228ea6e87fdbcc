"""`pykafka cat`: print what stands in a topic, and with `--follow` what is written to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, given_options, reach, reading_config
from spark_kafka_sink.cli.shown_rows import COLUMNS, Lines, TableLines, json_lines, text_lines
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.reader.reader import TopicReader

HELP = "print what a topic holds, up to its present end or beyond"
BEGINNING, END = "beginning", "end"
_FROM = f"{BEGINNING}, {END}, an offset, -N (the last N of each partition) or a time such as 2026-05-01T12:00"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="the topic to read")
    add("--partition", type=int, action="append", metavar="N", help="read only this partition; may be repeated")
    add(
        "--from",
        dest="start",
        default=BEGINNING,
        metavar="WHERE",
        help=f"where to begin: {_FROM}, in UTC if it names no zone (default: %(default)s)",
    )
    add("-f", "--follow", action="store_true", help="go on with what is written, until interrupted")
    add("-n", "--max-messages", type=int, metavar="N", help="stop after N messages")
    add(
        "--format",
        choices=("text", "json", "table"),
        default="text",
        help="text: the bytes as they are, a line for each record; json: all of each record (default: %(default)s)",
    )
    add(
        "--columns",
        metavar="NAMES",
        help=f"of text and table, with commas between: {', '.join(COLUMNS)} (default: value for text, all for table)",
    )
    add(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_uncommitted shows transactions that are open or were aborted, too (default: %(default)s)",
    )


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.reader.reader import TopicReader

    columns = _columns(chosen.columns, chosen.format)
    if chosen.max_messages is not None and chosen.max_messages < 0:
        raise ConfigurationError(f"--max-messages is {chosen.max_messages}, but must be at least 0")
    config = reading_config(given_options(chosen))
    where = _place(chosen.start)
    reach(config, chosen.topic)
    shows: Mapping[str, Lines] = {"text": text_lines, "json": json_lines, "table": TableLines()}
    show, left = shows[chosen.format], chosen.max_messages
    if left == 0:
        return 0
    with TopicReader(config, isolation=chosen.isolation) as reader:
        start = _start(reader, chosen.topic, chosen.partition, where)
        for table in reader.batches(chosen.topic, partitions=chosen.partition, start=start, follow=chosen.follow):
            rows = table if left is None else table.slice(0, left)
            sys.stdout.buffer.writelines(show(rows, columns))
            sys.stdout.buffer.flush()
            left = None if left is None else left - rows.num_rows
            if left is not None and left <= 0:
                break
    return 0


def _columns(names: str | None, shape: str) -> Sequence[str]:
    if names is None:
        return COLUMNS if shape == "table" else ("value",)
    columns = [name.strip() for name in names.split(",")]
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigurationError(f"--columns: {unknown[0]!r} is none of {', '.join(COLUMNS)}")
    return columns


def _place(words: str) -> str | int | datetime:
    if words in (BEGINNING, END):
        return words
    try:
        return int(words)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(words.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"--from is {words!r}, but must be {_FROM}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _start(
    reader: TopicReader, topic: str, partitions: Sequence[int] | None, where: str | int | datetime
) -> dict[int, int]:
    """Where to begin in each partition, within what is there; without an entry: at its beginning."""
    if where == BEGINNING:
        return {}
    if where == END:
        return reader.end_offsets(topic, partitions)
    if isinstance(where, datetime):
        return reader.offsets_at(topic, int(where.timestamp() * 1000), partitions)
    number = int(where)
    first, end = reader.beginning_offsets(topic, partitions), reader.end_offsets(topic, partitions)
    wanted = {partition: number if number >= 0 else end[partition] + number for partition in end}
    return {partition: max(first[partition], min(offset, end[partition])) for partition, offset in wanted.items()}
