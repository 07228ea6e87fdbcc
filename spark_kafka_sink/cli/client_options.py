"""Arguments and preflight checks for the commands that connect to brokers.

All commands accept the same options file. Commands that only read topics ignore options that only producers have.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.options.files import read_bounded_file
from spark_kafka_sink.protocol.acl_operation import AclOperation

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig
    from spark_kafka_sink.producer.config import ProducerConfig

BOOTSTRAP_SERVERS_OPTION = "bootstrap.servers"

_COMMENT_CHARACTERS = "#!"
"""The characters that begin a comment in Java's properties files."""
_OPTION_PATTERN = re.compile(r"([\w.-]+)\s*[=:](.*)", re.DOTALL)
"""A name and a value, separated by `=` or, as in many of Java's properties files, by `:`."""


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="bootstrap servers; required unless the option bootstrap.servers is set",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="file with options of the Java client, one NAME=VALUE per line; keeps secrets off the command line",
    )
    parser.add_argument(
        "-X",
        "--option",
        dest="options",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one option of the Java client; may be repeated, and overrides the file",
    )


def parse_client_options(args: argparse.Namespace) -> dict[str, object]:
    """Merge the options from the file, the -X arguments and --bootstrap-server.

    -X overrides the file, and --bootstrap-server overrides both. Raise ConfigurationError if no bootstrap server is
    set, or if an option is not of the form NAME=VALUE.
    """
    lines = [] if args.command_config is None else read_text_file(args.command_config, "--command-config").splitlines()
    options: dict[str, object] = {**parse_properties(lines, "--command-config"), **parse_option_arguments(args.options)}
    if args.bootstrap_server:
        options[BOOTSTRAP_SERVERS_OPTION] = args.bootstrap_server
    if not options.get(BOOTSTRAP_SERVERS_OPTION):
        raise ConfigurationError("no bootstrap server is set: pass --bootstrap-server HOST:PORT")
    return options


def build_reader_config(options: Mapping[str, object]) -> ClientConfig:
    """Build the configuration for a command that only reads. Options that only producers have are ignored."""
    from spark_kafka_sink.client.options import CLIENT_OPTIONS, parse_client_config
    from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

    # Unknown options are kept, so that parse_client_config rejects them.
    producer_only_options = PRODUCER_OPTIONS.keys() - CLIENT_OPTIONS.keys()
    return parse_client_config({name: value for name, value in options.items() if name not in producer_only_options})


def parse_properties(lines: Sequence[str], argument: str) -> dict[str, str]:
    """Parse the lines of one of Java's properties files, in which a value may continue on the next line.

    Unlike Java, keep the backslashes in values, and require `=` or `:` after a name.

    `argument`: the command-line argument to name in error messages.
    """
    return dict(_parse_option(line, f"{argument}: line {number}") for number, line in _join_continued_lines(lines))


def parse_option_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Parse the NAME=VALUE arguments of -X."""
    return dict(_parse_option(text, "-X: an option") for text in arguments)


def _join_continued_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield each option's text and the number of its first line. Skip empty lines and comments.

    As in java.util.Properties, a line that ends in an odd number of backslashes continues on the next line. The last
    backslash and the next line's leading white space are dropped.
    """
    numbered_lines = enumerate(lines, 1)
    for number, first_line in numbered_lines:
        text = first_line.lstrip()
        if not text or text[0] in _COMMENT_CHARACTERS:
            continue
        while (len(text) - len(text.rstrip("\\"))) % 2:
            _, next_line = next(numbered_lines, (number, ""))
            text = text[:-1] + next_line.lstrip()
        yield number, text


def _parse_option(text: str, subject: str) -> tuple[str, str]:
    """Return an option's name and value. Raise ConfigurationError if `text` is not of the form NAME=VALUE.

    `subject`: the subject of the error message. The error does not show `text`, because it may contain a password.
    """
    match = _OPTION_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{subject} is not of the form NAME=VALUE")
    return match[1], match[2].strip()


def read_text_file(path: Path, argument: str) -> str:
    """Read a small file, or the pipe that a shell passes for `<(command)`.

    `argument`: the command-line argument to name in error messages.
    """
    try:
        return read_bounded_file(path, allow_pipe=True).decode()
    except OSError as error:
        raise ConfigurationError(f"{argument}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{argument}: {path} is not UTF-8 text") from error


def check_topics_readable(config: ClientConfig, *topics: str, operation: AclOperation = AclOperation.READ) -> None:
    """Raise PreflightError if the cluster is unreachable, or if a topic does not exist or this user may not read it.

    Failed connections are retried for about a second. If a broker does not respond, the check takes some seconds
    longer.

    `operation`: DESCRIBE if the command does not fetch records.
    """
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Target, build_preflight_error, preflight

    target = Target(topics, topic_operation=operation, allow_auto_topic_creation=False)
    with silence_client_log():
        checks = preflight(config, target, timeouts=INTERACTIVE_TIMEOUTS)
    error = build_preflight_error(checks, "Cannot read from Kafka.")
    if error is not None:
        raise error


def check_write_access(config: ProducerConfig, topic: str) -> None:
    """Raise PreflightError if this user cannot write to the topic from this machine.

    Retries and time limits are the same as in `check_topics_readable`.
    """
    from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Target, build_preflight_error, preflight

    target = Target((topic,), idempotent=config.enable_idempotence)
    with silence_client_log():
        checks = preflight(config.client_config(), target, timeouts=INTERACTIVE_TIMEOUTS)
    error = build_preflight_error(checks)
    if error is not None:
        raise error


@contextmanager
def silence_client_log() -> Iterator[None]:
    """Suppress the client's log in the block, because the checks and their error contain the same information."""
    log = logging.getLogger("spark_kafka_sink.client")
    previous_level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(previous_level)
