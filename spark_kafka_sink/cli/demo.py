"""`pykafka demo`: a real Spark job writes a million rows and then a stream; everything is read back and counted."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError, MissingDependencyError

HELP = "write a million rows and a stream from a real Spark, read them back, and show what is where"
ROWS = 1_000_000
_LISTENING = "listening on "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--bootstrap-server",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="your Kafka (default: a broker of the demo's own)",
    )
    add("--rows", type=int, default=ROWS, metavar="N", help="rows of the batch job (default: %(default)s)")


def run(chosen: argparse.Namespace) -> int:
    if chosen.rows < 1:
        raise ConfigurationError(f"--rows is {chosen.rows}, but must be at least 1")
    require_spark()
    from spark_kafka_sink.cli.demo_job import Demo  # imports pyspark

    with contextlib.ExitStack() as stack:
        print("\n1/4  a broker", flush=True)
        if chosen.bootstrap_server:
            bootstrap = chosen.bootstrap_server
            print(f"     your Kafka at {bootstrap}", flush=True)
        else:
            bootstrap = stack.enter_context(broker_process())
            print(f"     an embedded one, at {bootstrap} (for your own: --bootstrap-server HOST:PORT)", flush=True)
        demo = Demo(bootstrap, chosen.rows)
        everything_is_there = demo.run()
    if chosen.bootstrap_server:
        print(f"Topic {demo.topic} is still there: delete it when you have seen enough.")
    print("Next: write a job of your own, and look with `pykafka doctor` whether it can write to your Kafka.")
    return 0 if everything_is_there else 1


def require_spark() -> None:
    """Without Java Spark would say JAVA_GATEWAY_EXITED, after a page of traceback."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependencyError('the demo needs pyspark: pip install "pyspark>=4.1"')
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no java on the PATH"
        raise MissingDependencyError(
            f"Spark needs Java 17 or newer, but {where}. Install one, or set JAVA_HOME to the folder of one."
        )


@contextlib.contextmanager
def broker_process() -> Iterator[str]:
    """The address of a broker in a process of its own, as a real one is."""
    command = [sys.executable, "-m", "spark_kafka_sink", "broker", "--port", "0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        lines = (line for line in broker.stdout if line.startswith(_LISTENING))
        address = next(lines, "").removeprefix(_LISTENING).strip()
        if not address:
            raise KafkaSinkError(f"the embedded broker did not start; it ended with status {broker.wait()}")
        yield address
    finally:
        broker.terminate()
        with broker:
            broker.wait()
