"""What all commands that talk to brokers have in common: where the brokers are, how to log in, and a quick first look.

A file of options serves all of them. Commands that read topics pass over those that only a producer has.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.options.files import read_regular_file

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig
    from spark_kafka_sink.producer.config import ProducerConfig

SERVERS = "bootstrap.servers"


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="brokers to connect to first; needed unless an option names them",
    )
    add(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="options of the Java client, a line NAME=VALUE for each: keeps secrets off the command line",
    )
    add(
        "-X",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one such option; may be repeated, and wins over the file",
    )


def given_options(chosen: argparse.Namespace) -> dict[str, object]:
    """ConfigurationError if no broker is named, or a line is not NAME=VALUE."""
    lines = [] if chosen.command_config is None else text_of(chosen.command_config, "--command-config").splitlines()
    options: dict[str, object] = {**properties(lines, "--command-config"), **properties(chosen.option, "-X")}
    if chosen.bootstrap_server:
        options[SERVERS] = chosen.bootstrap_server
    if not options.get(SERVERS):
        raise ConfigurationError("no broker is named: give --bootstrap-server HOST:PORT")
    return options


def reading_config(options: Mapping[str, object]) -> ClientConfig:
    """For a command that only reads."""
    from spark_kafka_sink.client.options import CLIENT_OPTIONS, client_config
    from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

    return client_config(
        {name: value for name, value in options.items() if name in CLIENT_OPTIONS or name not in PRODUCER_OPTIONS}
    )


def properties(lines: Sequence[str], where: str) -> dict[str, str]:
    """Lines of the form NAME=VALUE; empty ones and comments are passed over."""
    found: dict[str, str] = {}
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            # The line itself is not shown: it may be a password.
            raise ConfigurationError(f"{where}: an option is not of the form NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def text_of(path: Path, where: str) -> str:
    """A small file that the user has named, or what a shell makes of `<(command)`."""
    try:
        return read_regular_file(path, allow_pipe=True).decode()
    except OSError as error:
        raise ConfigurationError(f"{where}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{where}: {path} is not a text in UTF-8") from error


def reach(config: ClientConfig, *topics: str) -> None:
    """PreflightError, after a second, if there is no cluster to talk to, or not these topics."""
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Target, build_preflight_error, preflight

    with quiet():
        checks = preflight(config, Target(topics, allow_auto_topic_creation=False), timeouts=INTERACTIVE_TIMEOUTS)
    error = build_preflight_error(checks, "Kafka cannot be read")
    if error is not None:
        raise error


def reach_to_write(config: ProducerConfig, topic: str) -> None:
    """PreflightError, after a second, if this user cannot write to this topic from here."""
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Target, build_preflight_error, preflight

    target = Target((topic,), idempotent=config.enable_idempotence)
    with quiet():
        checks = preflight(config.client_config(), target, timeouts=INTERACTIVE_TIMEOUTS)
    error = build_preflight_error(checks)
    if error is not None:
        raise error


@contextmanager
def quiet() -> Iterator[None]:
    """No lines of the client's log: what they would say is in the checks, and in the error that is made of them."""
    log = logging.getLogger("spark_kafka_sink.client")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
