"""An embedded broker in a separate process that acknowledges records without storing them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def discard_broker(topics: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Start a broker with these topics and their numbers of partitions. Yield its address and its process id.

    The broker has no I/O threads, for the reason measured in docs/decisions/0014-broker-threads.md.
    """
    command = [sys.executable, "-m", "spark_kafka_sink.cli", "broker", "--port", "0", "--discard"]
    command += ["--num-io-threads", "0"]
    for topic, partitions in topics.items():
        command += ["--topic", f"{topic}:{partitions}"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        yield next(line.split()[-1] for line in broker.stdout if line.startswith("listening on ")), broker.pid
    finally:
        broker.terminate()
        with broker:
            broker.wait()
