"""A program that creates and closes producers, each for one record, and prints its resource usage as JSON.

    python -m integration.support.short_lived_producers BOOTSTRAP CYCLES

It prints one line after WARM_UP_CYCLES producers, and another one after CYCLES more.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
from pathlib import Path

from integration.support.processes import read_resident_bytes
from spark_kafka_sink import KafkaProducer, ProducerRecord
from tests.waiting import WAIT_TIMEOUT_SECONDS

WARM_UP_CYCLES = 300
COLLECT_EVERY = 100
"""Cycles between garbage collections. Without them, thousands of unreachable tuples would look like a leak."""
_PR_SET_THP_DISABLE = 41
"""The operation of prctl(2) that disables transparent huge pages for this process."""


def use_producers(bootstrap: str, producers: int) -> None:
    for number in range(producers):
        with KafkaProducer({"bootstrap.servers": bootstrap}) as producer:
            producer.send(ProducerRecord("t", b"value")).result(WAIT_TIMEOUT_SECONDS)
        if number % COLLECT_EVERY == 0:
            gc.collect()


def print_usage() -> None:
    gc.collect()
    usage = {
        "resident_bytes": read_resident_bytes(os.getpid()),
        "blocks": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }
    print(json.dumps(usage), flush=True)


def main() -> None:
    bootstrap, cycles = sys.argv[1], int(sys.argv[2])
    # Otherwise, the kernel may turn small pages into a huge page during the measurement, which adds 2 MiB.
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    use_producers(bootstrap, WARM_UP_CYCLES)
    print_usage()
    use_producers(bootstrap, cycles)
    print_usage()


if __name__ == "__main__":
    main()
