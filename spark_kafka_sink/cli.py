"""`pykafka`: what one does with the package from a shell. One function per subcommand."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pykafka", description="Kafka from Python: a broker for tests and first runs."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_broker(commands)
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except KafkaSinkError as error:
        print(f"pykafka: {error}", file=sys.stderr)
        return 1
    return status


def _add_broker(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    broker = commands.add_parser(
        "broker",
        help="run an embedded broker until it is interrupted",
        description="A broker in one process, for tests and first runs; it prints `listening on HOST:PORT`.",
    )
    add = broker.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--advertised-host", metavar="NAME", help="name that clients are told to connect to (default: the host)")
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
    add("--users", type=Path, metavar="FILE", help="for SASL: a line NAME:PASSWORD for each user")
    broker.set_defaults(run=run_broker)


def run_broker(arguments: argparse.Namespace) -> int:
    from spark_kafka_sink.broker.listener_security import ListenerSecurity
    from spark_kafka_sink.testing import embedded_broker

    security = ListenerSecurity(
        protocol=arguments.security,
        certificate=arguments.certificate,
        client_ca=arguments.client_ca,
        users={} if arguments.users is None else _users(arguments.users),
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
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
    with broker:
        print(f"listening on {broker.bootstrap_servers}", flush=True)
        stop.wait()
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
