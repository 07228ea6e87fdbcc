"""The command line `pykafka`. Each command is a module; main.py lists them all."""

from spark_kafka_sink.cli.main import main

__all__ = ["main"]
