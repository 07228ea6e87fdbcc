"""The entry point of `pykafka`: its argument parser, commands and exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

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
from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""The exit status that shells use for SIGINT: 128 plus the signal's number."""
EXIT_BROKEN_PIPE = 141
"""The exit status that shells use for SIGPIPE, instead of which Python raises BrokenPipeError."""


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
    _open_missing_streams()
    try:
        try:
            return _run_command(sys.argv[1:] if arguments is None else arguments)
        finally:
            # Python would write the remaining output at exit and, if that fails, set another exit status.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
    except OSError as error:
        # The process that reads the pipe may have exited, as in `pykafka cat ... | head`.
        is_broken_pipe = isinstance(error, BrokenPipeError)
        if not is_broken_pipe:
            with suppress(OSError):  # stderr may have failed, too
                print(f"pykafka: {error.strerror or error}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            _discard_unwritten_output(stream)
        return EXIT_BROKEN_PIPE if is_broken_pipe else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _open_missing_streams() -> None:
    """Open the null device in place of each standard stream that was closed when the process started.

    Python sets such a stream to None.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until exit


def _discard_unwritten_output(stream: TextIO) -> None:
    """Redirect the stream to the null device if it cannot be flushed, because Python would flush it again at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_command(arguments: Sequence[str]) -> int:
    """Parse the arguments, run their command and return its exit status. Print a KafkaSinkError to stderr."""
    try:
        _check_encoding(arguments)
        args = build_parser().parse_args(arguments)
        return COMMANDS[args.command].run(args)
    except KafkaSinkError as error:
        print(f"pykafka: {error}", file=sys.stderr)
        return EXIT_FAILED


def _check_encoding(arguments: Sequence[str]) -> None:
    """Raise ConfigurationError if an argument contains bytes that Python could not decode."""
    for argument in arguments:
        if argument.encode(errors="replace").decode() != argument:
            encoding = sys.getfilesystemencoding().upper()
            raise ConfigurationError(
                f"the argument {argument!r} is not encoded in {encoding}. Encode all arguments in {encoding}."
            )


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
