"""`pykafka cat`: print what stands in a topic."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.reader.reader import TopicReader

HELP = "print what stands in a topic, up to its present end"
BEGINNING = "beginning"
ROWS_AT_ONCE = 1_000
"""As Python's objects, which take much more memory than columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("--bootstrap-server", required=True, metavar="HOST:PORT[,HOST:PORT...]")
    add("--partition", type=int, action="append", metavar="N", help="only this one; may be repeated")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--from-beginning", dest="offset", action="store_const", const=BEGINNING, help="the default")
    where.add_argument("--offset", metavar="N", help="begin at this offset; -N: at the last N of each partition")
    add("--max-messages", type=int, metavar="N", help="stop after N messages")
    add("--format", choices=("value", "json"), default="value", help="value: the bytes, one per line")
    add("--isolation", choices=("read_committed", "read_uncommitted"), default="read_committed")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="a client option, as in Java")
    add("--command-config", type=Path, metavar="FILE", help="a file of such options: keeps secrets off `ps`")
    parser.set_defaults(offset=BEGINNING)


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.client.options import client_config
    from spark_kafka_sink.reader.reader import TopicReader

    options = {**_options(chosen), "bootstrap.servers": chosen.bootstrap_server}
    show = _json_lines if chosen.format == "json" else _value_lines
    left = chosen.max_messages
    with TopicReader(client_config(options), isolation=chosen.isolation) as reader:
        start = _start(reader, chosen.topic, chosen.partition, chosen.offset)
        for table in reader.batches(chosen.topic, partitions=chosen.partition, start=start):
            rows = table if left is None else table.slice(0, left)
            sys.stdout.buffer.writelines(show(rows))
            sys.stdout.buffer.flush()
            left = None if left is None else left - rows.num_rows
            if left is not None and left <= 0:
                break
    return 0


def _start(reader: TopicReader, topic: str, partitions: Iterable[int] | None, offset: str) -> dict[int, int]:
    """Where to begin in each partition, within what is there; nothing said: at its beginning."""
    if offset == BEGINNING:
        return {}
    try:
        number = int(offset)
    except ValueError:
        raise ConfigurationError(f"--offset is {offset!r}, but must be a whole number or '{BEGINNING}'") from None
    first, end = reader.beginning_offsets(topic, partitions), reader.end_offsets(topic, partitions)
    wanted = {partition: number if number >= 0 else end[partition] + number for partition in end}
    return {partition: max(first[partition], min(offset, end[partition])) for partition, offset in wanted.items()}


def _options(chosen: argparse.Namespace) -> dict[str, object]:
    lines: list[str] = []
    if chosen.command_config is not None:
        try:
            lines = chosen.command_config.read_text().splitlines()
        except OSError as error:
            raise ConfigurationError(f"--command-config {chosen.command_config}: {error.strerror}") from error
    given = [line.strip() for line in lines if line.strip() and line.strip()[0] not in "#!"] + chosen.option
    options: dict[str, object] = {}
    for line in given:
        name, equals, value = line.partition("=")
        if not equals:
            # The line itself is not shown: it may be a password.
            raise ConfigurationError("an option is not of the form NAME=VALUE")
        options[name.strip()] = value.strip()
    return options


def _value_lines(rows: pa.Table) -> Iterator[bytes]:
    for part in rows.select(["value"]).to_batches(max_chunksize=ROWS_AT_ONCE):
        for value in part.column(0).to_pylist():
            yield (value or b"") + b"\n"


def _json_lines(rows: pa.Table) -> Iterator[bytes]:
    for row in (row for part in rows.to_batches(max_chunksize=ROWS_AT_ONCE) for row in part.to_pylist()):
        row["timestamp"] = row["timestamp"].isoformat()
        row["key"], row["value"] = _readable(row["key"]), _readable(row["value"])
        row["headers"] = [
            {"key": header["key"], "value": _readable(header["value"])} for header in row["headers"] or ()
        ]
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _readable(data: bytes | None) -> object:
    """Text as text; other bytes as {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
