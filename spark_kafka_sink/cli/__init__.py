"""`pykafka`: the command line of the package. Each command is a module, which main.py lists."""

from spark_kafka_sink.cli.main import main

__all__ = ["main"]
