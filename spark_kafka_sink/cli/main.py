"""The entry point of `pykafka`: its argument parser, commands and exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_kafka_sink import __version__
from spark_kafka_sink.cli import (
    bench,
    broker,
    cat,
    completion,
    demo,
    doctor,
    produce,
    report,
    topics,
    transactions,
    verifiable_producer,
    verify,
)
from spark_kafka_sink.errors import KafkaSinkError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""The exit status that shells use for SIGINT: 128 plus the signal's number."""


class Command(Protocol):
    """A module that implements a command.

    Modules that are slow to import and that only `run` needs are imported inside `run`, so that `pykafka --help` stays
    fast.
    """

    COMMAND_HELP: str
    """The command's description in `pykafka --help` and at the top of its own help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit status. `main` prints a KafkaSinkError to stderr."""
        ...


COMMANDS: Mapping[str, Command] = {
    "bench": bench,
    "broker": broker,
    "cat": cat,
    "completion": completion,
    "demo": demo,
    "doctor": doctor,
    "produce": produce,
    "report": report,
    "topics": topics,
    "transactions": transactions,
    "verifiable-producer": verifiable_producer,
    "verify": verify,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit status. By default, use the process's arguments."""
    args = build_parser().parse_args(arguments)
    try:
        return COMMANDS[args.command].run(args)
    except KafkaSinkError as error:
        print(f"pykafka: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # The process that read the pipe has exited, as in `pykafka cat ... | head`. Redirecting stdout keeps Python
        # from failing again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"pykafka: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pykafka",
        description="Kafka from Python: inspect topics, write to them, and run a broker for tests.",
        epilog="Start with: pykafka doctor --bootstrap-server HOST:PORT. Each command has --help.",
    )
    parser.set_defaults(parser=parser)  # `pykafka completion` needs it
    parser.add_argument("--version", action="version", version=f"pykafka {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        description = f"{command.COMMAND_HELP[0].upper()}{command.COMMAND_HELP[1:]}."
        command.add_arguments(commands.add_parser(name, help=command.COMMAND_HELP, description=description))
    return parser
