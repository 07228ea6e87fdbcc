"""`pykafka`: what one does with the package from a shell. Each command is a file of its own, listed in main.py."""

from spark_kafka_sink.cli.main import main

__all__ = ["main"]
