"""`pykafka broker`: an embedded broker in a process of its own. It prints `listening on HOST:PORT`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import text_of
from spark_kafka_sink.cli.tables import table_lines
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.broker.listener_security import ListenerSecurity
    from spark_kafka_sink.broker.topics import Topic
    from spark_kafka_sink.testing import EmbeddedBroker

HELP = "run an embedded broker until it is interrupted, for tests and first runs"
WAIT_SECONDS = 0.5
TOPICS_SHOWN_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--advertised-host", metavar="NAME", help="name that clients connect to (default: the host)")
    add("--port", type=int, default=9092, help="port of the first node; 0 for any free one (default: %(default)s)")
    add("--nodes", type=int, default=1, help="number of nodes; each has a port of its own (default: %(default)s)")
    add("--topic", action="append", default=[], metavar="NAME[:PARTITIONS]", help="create this topic; may be repeated")
    add("--partitions", type=int, default=1, help="of topics without a number of their own (default: %(default)s)")
    add("--no-auto-create", action="store_true", help="do not create missing topics when clients ask for them")
    add("--data", type=Path, metavar="DIR", help="keep topics in this directory (default: in memory)")
    add("--discard", action="store_true", help="acknowledge and count records, but keep none: to measure clients")
    add(
        "--transaction-version",
        type=int,
        choices=(0, 1, 2),
        default=2,
        help="transactions of this version (default: %(default)s)",
    )
    add("--num-network-threads", type=int, default=2, help="threads that read and write (default: %(default)s)")
    add(
        "--num-io-threads",
        type=int,
        default=2,
        help="threads that handle requests; 0: the network threads handle them (default: %(default)s)",
    )
    add(
        "--queued-max-requests",
        type=int,
        default=500,
        help="requests that may wait for an I/O thread (default: %(default)s)",
    )
    add("--security", default="PLAINTEXT", metavar="PROTOCOL", help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    add("--certificate", type=Path, metavar="PEM", help="key and certificate chain of the listener, for TLS")
    add("--client-ca", type=Path, metavar="PEM", help="ask clients for certificates of this authority")
    add("--users", type=Path, metavar="FILE", help="for PLAIN and SCRAM: a line NAME:PASSWORD for each user")
    add(
        "--unsigned-tokens",
        action="store_true",
        help="also offer OAUTHBEARER: accept unsigned tokens that name a user and have not expired",
    )


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.signal_wait import SignalWait
    from spark_kafka_sink.testing import embedded_broker

    security = _listener_security(chosen)
    try:
        broker = embedded_broker(
            dict(_topic(text, chosen.partitions) for text in chosen.topic),
            nodes=chosen.nodes,
            auto_create_topics=not chosen.no_auto_create,
            default_partitions=chosen.partitions,
            transaction_version=chosen.transaction_version,
            discard=chosen.discard,
            security=security,
            data=chosen.data,
            host=chosen.host,
            advertised_host=chosen.advertised_host,
            port=chosen.port,
            num_network_threads=chosen.num_network_threads,
            num_io_threads=chosen.num_io_threads,
            queued_max_requests=chosen.queued_max_requests,
        )
    except OSError as error:
        print(f"pykafka: cannot listen on {chosen.host}:{chosen.port}: {error.strerror}", file=sys.stderr)
        return 1
    with SignalWait() as signals, broker:
        # Programs read the first line, and perhaps no further: so little comes after it that a pipe holds it.
        sys.stdout.write("".join(f"{line}\n" for line in _status_lines(broker, chosen)))
        sys.stdout.flush()
        while broker.failure is None and not signals.wait(WAIT_SECONDS):
            pass
        signals.end_in_time()
    return 0


def _status_lines(broker: EmbeddedBroker, chosen: argparse.Namespace) -> list[str]:
    """Where the broker listens, for programs; and for people, the cluster in a line and its topics in a table."""
    users = " with PLAIN and SCRAM" if chosen.users is not None else ""
    tokens = ", OAUTHBEARER without signatures" if chosen.unsigned_tokens else ""
    kept = "nothing is kept" if chosen.discard else f"kept in {chosen.data}" if chosen.data else "kept in memory"
    create = "not made when they are asked for" if chosen.no_auto_create else "made when they are asked for"
    lines = [
        f"listening on {broker.bootstrap_servers}",
        f"{len(broker.cluster.nodes)} {'node' if len(broker.cluster.nodes) == 1 else 'nodes'}, {chosen.security}{users}"
        f"{tokens}, transaction.version {chosen.transaction_version}; records: {kept}; topics: {create}",
    ]
    with broker.cluster.lock:  # clients may make topics already
        topics = sorted(broker.cluster.topics.values(), key=lambda topic: topic.name)
    rows = [(topic.name, len(topic.partitions), _records(topic)) for topic in topics[:TOPICS_SHOWN_MAX]]
    lines += table_lines(("topic", "partitions", "records"), rows) if rows else []
    return lines + ([f"and {len(topics) - len(rows)} more"] if len(topics) > len(rows) else [])


def _records(topic: Topic) -> int:
    return sum(partition.log.log_end_offset for partition in topic.partitions)


def _listener_security(chosen: argparse.Namespace) -> ListenerSecurity:
    from spark_kafka_sink.broker.listener_security import OAUTHBEARER, PASSWORD_MECHANISMS, ListenerSecurity

    users = {} if chosen.users is None else _users(chosen.users)
    mechanisms = list(PASSWORD_MECHANISMS) if users or not chosen.unsigned_tokens else []
    if chosen.unsigned_tokens:
        mechanisms.append(OAUTHBEARER)
    return ListenerSecurity(
        protocol=chosen.security,
        certificate=chosen.certificate,
        client_ca=chosen.client_ca,
        users=users,
        mechanisms=mechanisms,
    )


def _topic(text: str, default_partitions: int) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not name or (colon and (not partitions.isdecimal() or int(partitions) < 1)):
        raise ConfigurationError(f"--topic is NAME or NAME:PARTITIONS, not {text}")
    return name, int(partitions) if colon else default_partitions


def _users(path: Path) -> dict[str, str]:
    users = {}
    for number, line in enumerate(text_of(path, "--users").splitlines(), 1):
        name, colon, password = line.partition(":")
        if line and not (name and colon):
            raise ConfigurationError(f"--users: line {number} of {path} is not NAME:PASSWORD")
        if line:
            users[name] = password
    return users
