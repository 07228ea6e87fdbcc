"""A process that makes one producer after the other, each for one record. It prints what it holds early and at the end.

python -m integration.support.short_lived_producers BOOTSTRAP CYCLES
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path

from integration.support.processes import resident_bytes
from spark_kafka_sink import KafkaProducer, ProducerRecord
from tests.waiting import WAIT_TIMEOUT_SECONDS

WARM_UP_CYCLES = 300
COLLECT_EVERY = 100
"""Python keeps thousands of tuples that were freed, until it collects: these are no leak, but they look like one."""


def use(bootstrap: str, producers: int) -> None:
    for number in range(producers):
        with KafkaProducer({"bootstrap.servers": bootstrap}) as producer:
            producer.send(ProducerRecord("t", b"value")).result(WAIT_TIMEOUT_SECONDS)
        if number % COLLECT_EVERY == 0:
            gc.collect()


def tell() -> None:
    gc.collect()
    held = {
        "resident_bytes": resident_bytes(os.getpid()),
        "blocks": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }
    print(json.dumps(held), flush=True)


def main() -> None:
    bootstrap, cycles = sys.argv[1], int(sys.argv[2])
    use(bootstrap, WARM_UP_CYCLES)
    tell()
    use(bootstrap, cycles)
    tell()


if __name__ == "__main__":
    main()
