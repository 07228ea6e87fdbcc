"""`pykafka broker`: run an embedded broker in its own process. Its first line of output is `listening on HOST:PORT`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import read_text_file
from spark_kafka_sink.cli.tables import format_table
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.broker.listener_security import ListenerSecurity
    from spark_kafka_sink.broker.topics import Topic
    from spark_kafka_sink.testing import EmbeddedBroker

COMMAND_HELP = "run an embedded broker for tests and first steps until it is interrupted"
POLL_INTERVAL_SECONDS = 0.5
MAX_LISTED_TOPICS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_node_arguments(parser)
    _add_topic_arguments(parser)
    _add_request_queue_arguments(parser)
    _add_security_arguments(parser)


def _add_node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--advertised-host",
        metavar="NAME",
        help="host name that clients connect to (default: --host, or this machine's name for 0.0.0.0)",
    )
    parser.add_argument(
        "--port", type=int, default=9092, help="port of the first node; 0 for any free port (default: %(default)s)"
    )
    parser.add_argument(
        "--nodes", type=int, default=1, help="number of nodes, each with its own port (default: %(default)s)"
    )


def _add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic",
        dest="topics",
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="create this topic; may be repeated",
    )
    parser.add_argument(
        "--partitions", type=int, default=1, help="partitions of topics created without a number (default: %(default)s)"
    )
    parser.add_argument(
        "--no-auto-create", action="store_true", help="do not create missing topics when clients request their metadata"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep topics in this directory (default: in memory)")
    parser.add_argument(
        "--discard", action="store_true", help="acknowledge and count records without storing them, to measure clients"
    )
    parser.add_argument(
        "--transaction-version",
        type=int,
        choices=(0, 1, 2),
        default=2,
        help="transaction.version of the cluster (default: %(default)s)",
    )


def _add_request_queue_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-network-threads", type=int, default=2, help="threads that read and write sockets (default: %(default)s)"
    )
    parser.add_argument(
        "--num-io-threads",
        type=int,
        default=2,
        help="threads that handle requests; 0 lets the network threads handle them (default: %(default)s)",
    )
    parser.add_argument(
        "--queued-max-requests",
        type=int,
        default=500,
        help="maximum number of requests that wait for an I/O thread (default: %(default)s)",
    )


def _add_security_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--security", default="PLAINTEXT", metavar="PROTOCOL", help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="PEM", help="private key and certificate chain of the listener, for TLS"
    )
    parser.add_argument("--client-ca", type=Path, metavar="PEM", help="require client certificates that this CA signed")
    parser.add_argument(
        "--users", type=Path, metavar="FILE", help="users of PLAIN and SCRAM, one NAME:PASSWORD per line"
    )
    parser.add_argument(
        "--unsigned-tokens",
        action="store_true",
        help="also offer OAUTHBEARER, and accept unsigned tokens that name a user and have not expired",
    )


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.signal_wait import SignalWait
    from spark_kafka_sink.testing import embedded_broker

    security = _build_listener_security(args)
    try:
        broker = embedded_broker(
            dict(_parse_topic(text, args.partitions) for text in args.topics),
            nodes=args.nodes,
            auto_create_topics=not args.no_auto_create,
            default_partitions=args.partitions,
            transaction_version=args.transaction_version,
            discard=args.discard,
            security=security,
            data=args.data,
            host=args.host,
            advertised_host=args.advertised_host,
            port=args.port,
            num_network_threads=args.num_network_threads,
            num_io_threads=args.num_io_threads,
            queued_max_requests=args.queued_max_requests,
        )
    except OSError as error:
        print(f"pykafka: cannot listen on {args.host}:{args.port}: {error.strerror}", file=sys.stderr)
        return 1
    with SignalWait() as signals, broker:
        # Even if a program reads only the first line, this never blocks, because the rest fits in the pipe buffer.
        sys.stdout.write("".join(f"{line}\n" for line in _format_status_lines(broker, args)))
        sys.stdout.flush()
        while broker.failure is None and not signals.wait(POLL_INTERVAL_SECONDS):
            pass
        signals.limit_shutdown()  # the broker's threads now have a limited time to end
    return 0


def _format_status_lines(broker: EmbeddedBroker, args: argparse.Namespace) -> list[str]:
    """Return the lines to print: the address (which programs parse), a summary of the cluster and a table of topics."""
    password_note = " with PLAIN and SCRAM" if args.users is not None else ""
    token_note = ", OAUTHBEARER without signatures" if args.unsigned_tokens else ""
    if args.discard:
        storage = "discarded"
    elif args.data:
        storage = f"stored in {args.data}"
    else:
        storage = "stored in memory"
    auto_create = "not created automatically" if args.no_auto_create else "created automatically"
    lines = [
        f"listening on {broker.bootstrap_servers}",
        f"{format_count(len(broker.cluster.nodes), 'node')}, {args.security}{password_note}{token_note}, "
        f"transaction.version {args.transaction_version}; records: {storage}; missing topics: {auto_create}",
    ]
    # Take the lock, because clients may already be creating topics.
    with broker.cluster.lock:
        topics = sorted(broker.cluster.topics.values(), key=lambda topic: topic.name)
    topic_rows = [(topic.name, len(topic.partitions), _count_records(topic)) for topic in topics[:MAX_LISTED_TOPICS]]
    if topic_rows:
        lines += format_table(("topic", "partitions", "records"), topic_rows)
    if len(topics) > len(topic_rows):
        lines.append(f"and {len(topics) - len(topic_rows)} more")
    return lines


def _count_records(topic: Topic) -> int:
    return sum(partition.log.log_end_offset for partition in topic.partitions)


def _build_listener_security(args: argparse.Namespace) -> ListenerSecurity:
    """Build the listener's security. PLAIN and SCRAM are left out if tokens are accepted and there are no users.

    Raise ConfigurationError if a flag has no effect with the security protocol. If such a flag were ignored, the
    listener would be less secure than the flag suggests.
    """
    from spark_kafka_sink.broker.listener_security import OAUTHBEARER, PASSWORD_MECHANISMS, ListenerSecurity

    users = {} if args.users is None else _read_users(args.users)
    mechanisms = list(PASSWORD_MECHANISMS) if users or not args.unsigned_tokens else []
    if args.unsigned_tokens:
        mechanisms.append(OAUTHBEARER)
    security = ListenerSecurity(
        protocol=args.security,
        certificate=args.certificate,
        client_ca=args.client_ca,
        users=users,
        mechanisms=mechanisms,
    )
    flags = (
        ("--certificate", args.certificate, security.uses_tls, "SSL or SASL_SSL"),
        ("--client-ca", args.client_ca, security.uses_tls, "SSL or SASL_SSL"),
        ("--users", args.users, security.uses_sasl, "SASL_PLAINTEXT or SASL_SSL"),
        ("--unsigned-tokens", args.unsigned_tokens, security.uses_sasl, "SASL_PLAINTEXT or SASL_SSL"),
    )
    errors = [
        f"{flag} has no effect with {args.security}: set --security to {protocols}."
        for flag, value, has_effect, protocols in flags
        if value and not has_effect
    ]
    if errors:
        raise ConfigurationError(errors)
    return security


def _parse_topic(text: str, default_partitions: int) -> tuple[str, int]:
    """Return the topic's name and partition count. Raise ConfigurationError if `text` is not NAME[:PARTITIONS]."""
    name, colon, partitions = text.partition(":")
    has_valid_count = not colon or (partitions.isdecimal() and int(partitions) >= 1)
    if not name or not has_valid_count:
        raise ConfigurationError(f"--topic must be NAME or NAME:PARTITIONS, not {text}")
    partition_count = int(partitions) if colon else default_partitions
    return name, partition_count


def _read_users(path: Path) -> dict[str, str]:
    """Return the passwords in a file by user name. Raise ConfigurationError if a line is not NAME:PASSWORD."""
    users = {}
    for number, line in enumerate(read_text_file(path, "--users").splitlines(), 1):
        if not line:
            continue
        name, colon, password = line.partition(":")
        if not name or not colon:
            raise ConfigurationError(f"--users: line {number} of {path} is not NAME:PASSWORD")
        users[name] = password
    return users
