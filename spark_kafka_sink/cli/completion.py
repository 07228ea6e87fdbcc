"""`pykafka completion`: print a script that lets a shell complete commands and flags."""

from __future__ import annotations

import argparse

from spark_kafka_sink.errors import MissingDependencyError

COMMAND_HELP = "print a completion script for a shell"
SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=SHELLS, help='shell; for bash, add eval "$(pykafka completion bash)" to ~/.bashrc'
    )


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise MissingDependencyError('completion requires shtab: pip install "spark-kafka-sink[cli]"') from error
    print(shtab.complete(args.parser, shell=args.shell))
    return 0
