"""`pykafka`: what one does with the package from a shell. One function per subcommand."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.broker.listener_security import ListenerSecurity
    from spark_kafka_sink.reader.reader import TopicReader

BEGINNING = "beginning"
WAIT_SECONDS = 0.5
ROWS_AT_ONCE = 1_000
"""As Python's objects, which take much more memory than columns."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pykafka", description="Kafka from Python: look into topics; a broker for tests and first runs."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_broker(commands)
    _add_cat(commands)
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except KafkaSinkError as error:
        print(f"pykafka: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `pykafka cat ... | head`: the reader has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


def _add_broker(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    broker = commands.add_parser(
        "broker",
        help="run an embedded broker until it is interrupted",
        description="A broker in one process, for tests and first runs; it prints `listening on HOST:PORT`.",
    )
    add = broker.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--advertised-host", metavar="NAME", help="name that clients connect to (default: the host)")
    add("--port", type=int, default=9092, help="of the first node, 0 for any free one (default: %(default)s)")
    add("--nodes", type=int, default=1, help="how many nodes, on as many ports (default: %(default)s)")
    add("--topic", action="append", default=[], metavar="NAME[:PARTITIONS]", help="make this topic; may be repeated")
    add("--partitions", type=int, default=1, help="of topics that say no number (default: %(default)s)")
    add("--no-auto-create", action="store_true", help="do not make topics that clients ask for")
    add("--data", type=Path, metavar="DIR", help="keep topics in this directory (default: in memory)")
    add("--discard", action="store_true", help="acknowledge and count, keep nothing: for measuring clients")
    add("--transaction-version", type=int, choices=(0, 1, 2), default=2, help="default: %(default)s")
    add("--security", default="PLAINTEXT", metavar="PROTOCOL", help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    add("--certificate", type=Path, metavar="PEM", help="key and certificate chain of the listener, for TLS")
    add("--client-ca", type=Path, metavar="PEM", help="ask clients for certificates of this authority")
    add("--users", type=Path, metavar="FILE", help="for PLAIN and SCRAM: a line NAME:PASSWORD for each user")
    add("--unsigned-tokens", action="store_true", help="offer OAUTHBEARER, too, and let in everybody who comes with it")
    broker.set_defaults(run=run_broker)


def run_broker(arguments: argparse.Namespace) -> int:
    from spark_kafka_sink.signal_wait import SignalWait
    from spark_kafka_sink.testing import embedded_broker

    security = _listener_security(arguments)
    try:
        broker = embedded_broker(
            dict(_topic(text, arguments.partitions) for text in arguments.topic),
            nodes=arguments.nodes,
            auto_create_topics=not arguments.no_auto_create,
            default_partitions=arguments.partitions,
            transaction_version=arguments.transaction_version,
            discard=arguments.discard,
            security=security,
            data=arguments.data,
            host=arguments.host,
            advertised_host=arguments.advertised_host,
            port=arguments.port,
        )
    except OSError as error:
        print(f"pykafka: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}", file=sys.stderr)
        return 1
    with SignalWait() as signals, broker:
        print(f"listening on {broker.bootstrap_servers}", flush=True)
        while broker.failure is None and not signals.wait(WAIT_SECONDS):
            pass
        signals.end_in_time()
    return 0


def _listener_security(arguments: argparse.Namespace) -> ListenerSecurity:
    from spark_kafka_sink.broker.listener_security import OAUTHBEARER, PASSWORD_MECHANISMS, ListenerSecurity

    users = {} if arguments.users is None else _users(arguments.users)
    mechanisms = list(PASSWORD_MECHANISMS) if users or not arguments.unsigned_tokens else []
    if arguments.unsigned_tokens:
        mechanisms.append(OAUTHBEARER)
    return ListenerSecurity(
        protocol=arguments.security,
        certificate=arguments.certificate,
        client_ca=arguments.client_ca,
        users=users,
        mechanisms=mechanisms,
    )


def _topic(text: str, default_partitions: int) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not name or (colon and (not partitions.isdecimal() or int(partitions) < 1)):
        raise ConfigurationError(f"--topic is NAME or NAME:PARTITIONS, not {text}")
    return name, int(partitions) if colon else default_partitions


def _users(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"--users: {path} cannot be read: {error.strerror}") from error
    users = {}
    for number, line in enumerate(lines, 1):
        name, colon, password = line.partition(":")
        if line and not (name and colon):
            raise ConfigurationError(f"--users: line {number} of {path} is not NAME:PASSWORD")
        if line:
            users[name] = password
    return users


def _add_cat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    cat = commands.add_parser("cat", help="print what stands in a topic, up to its present end")
    cat.add_argument("topic", metavar="TOPIC")
    cat.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT[,HOST:PORT...]")
    cat.add_argument("--partition", type=int, action="append", metavar="N", help="only this one; may be repeated")
    where = cat.add_mutually_exclusive_group()
    where.add_argument("--from-beginning", dest="offset", action="store_const", const=BEGINNING, help="the default")
    where.add_argument("--offset", metavar="N", help="begin at this offset; -N: at the last N of each partition")
    cat.add_argument("--max-messages", type=int, metavar="N", help="stop after N messages")
    cat.add_argument("--format", choices=("value", "json"), default="value", help="value: the bytes, one per line")
    cat.add_argument("--isolation", choices=("read_committed", "read_uncommitted"), default="read_committed")
    cat.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a client option, as in Java")
    cat.add_argument(
        "--command-config", type=Path, metavar="FILE", help="a file of such options: keeps secrets off `ps`"
    )
    cat.set_defaults(run=run_cat, offset=BEGINNING)


def run_cat(chosen: argparse.Namespace) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
