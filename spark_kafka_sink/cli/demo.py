"""`pykafka demo`: write a million rows and a stream with a real Spark job, then read the rows back and count them."""

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

COMMAND_HELP = "write a million rows and a stream with Spark, read them back, and show their partitions and offsets"
DEFAULT_ROW_COUNT = 1_000_000
_LISTENING_PREFIX = "listening on "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="bootstrap servers of your Kafka (default: the demo starts a broker)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=DEFAULT_ROW_COUNT,
        metavar="N",
        help="number of rows of the batch job (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    if args.rows < 1:
        raise ConfigurationError(f"--rows must be at least 1, not {args.rows}")
    require_spark()
    from spark_kafka_sink.cli.demo_job import Demo  # imports pyspark

    with contextlib.ExitStack() as stack:
        print("\n1/4  a broker", flush=True)
        if args.bootstrap_server:
            bootstrap_servers = args.bootstrap_server
            print(f"     your Kafka at {bootstrap_servers}", flush=True)
        else:
            bootstrap_servers = stack.enter_context(run_broker_process())
            print(
                f"     an embedded broker at {bootstrap_servers} (to use your own: --bootstrap-server HOST:PORT)",
                flush=True,
            )
        demo = Demo(bootstrap_servers, args.rows)
        is_complete = demo.run()
    if args.bootstrap_server:
        print(f"Topic {demo.topic} still exists. Delete it when you no longer need it.")
    print("Next: write your own job, and check with `pykafka doctor` that it can write to your Kafka.")
    return 0 if is_complete else 1


def require_spark() -> None:
    """Raise MissingDependencyError if pyspark or Java is missing.

    Without Java, Spark itself would fail with a page of traceback that ends in JAVA_GATEWAY_EXITED.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependencyError('the demo requires pyspark: pip install "pyspark>=3.5"')
    java_home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{java_home}/bin/java" if java_home else "java") is None:
        problem = f"JAVA_HOME is {java_home}, which has no bin/java" if java_home else "there is no java on the PATH"
        raise MissingDependencyError(
            f"Spark requires Java 17 or newer, but {problem}. Install Java, or set JAVA_HOME to its directory."
        )


@contextlib.contextmanager
def run_broker_process() -> Iterator[str]:
    """Run an embedded broker in its own process and yield its address. The broker is terminated at the end.

    Raise KafkaSinkError if the broker does not start.
    """
    command = [sys.executable, "-m", "spark_kafka_sink", "broker", "--port", "0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        lines = (line for line in broker.stdout if line.startswith(_LISTENING_PREFIX))
        address = next(lines, "").removeprefix(_LISTENING_PREFIX).strip()
        if not address:
            raise KafkaSinkError(f"the embedded broker did not start; it exited with status {broker.wait()}")
        yield address
    finally:
        broker.terminate()
        with broker:
            broker.wait()
