"""The parser of `pykafka`, the table of its commands, and how each of them ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_kafka_sink import __version__
from spark_kafka_sink.cli import bench, broker, cat, completion, demo, doctor, produce, report, topics, transactions
from spark_kafka_sink.errors import KafkaSinkError

FAILED = 1
INTERRUPTED = 130
"""The exit status that shells use: 128 plus the number of SIGINT."""


class Command(Protocol):
    """A module of one command. What it needs beyond the parser is imported when it runs."""

    HELP: str
    """A line of `pykafka --help`; the module's own help begins with it."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, chosen: argparse.Namespace) -> int:
        """The exit status. A KafkaSinkError is what the user did wrong or met: it is printed as a sentence."""
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
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        return COMMANDS[chosen.command].run(chosen)
    except KafkaSinkError as error:
        print(f"pykafka: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # `pykafka cat ... | head`: the reader has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"pykafka: {error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="pykafka",
        description="Kafka from Python: look into topics, write to them; a broker for tests.",
        epilog="To begin with: pykafka doctor --bootstrap-server HOST:PORT. Each command has --help.",
    )
    whole.set_defaults(parser=whole)  # for completion
    whole.add_argument("--version", action="version", version=f"pykafka {__version__}")
    commands = whole.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        about = f"{command.HELP[0].upper()}{command.HELP[1:]}."
        command.add_arguments(commands.add_parser(name, help=command.HELP, description=about))
    return whole
