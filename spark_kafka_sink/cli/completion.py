"""`pykafka completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import argparse

from spark_kafka_sink.errors import MissingDependencyError

HELP = "print a script for the shell's own completion"
SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help='bash: eval "$(pykafka completion bash)" in ~/.bashrc')


def run(chosen: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise MissingDependencyError('completion needs shtab: pip install "spark-kafka-sink[cli]"') from error
    print(shtab.complete(chosen.parser, shell=chosen.shell))
    return 0
