"""The memory of a producer with slow brokers is bounded, does not grow, and is released when the producer is closed.

The measured producer runs in a separate process. The broker responds to a request only while a call in that process
waits for memory. So buffer.memory (32 MB by default) is always full, however slow or busy the machine is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.support.processes import read_resident_bytes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker

SOAK = bool(os.environ.get("SOAK"))
RECORDS = 20_000_000 if SOAK else 6_000_000
"""Number of records. In the short run, a leak of three bytes per record reaches GROWTH_BYTES_MAX."""
VARIANT_RECORD_COUNT = 3_000_000
LARGE_BATCH_RECORD_COUNT = 9_000_000
SINGLE_RECORDS = 400_000
ANONYMOUS_BYTES_MAX = 32_000_000 + 85_000_000
"""Limit for buffer.memory, Python, numpy, Arrow, rows in intermediate forms, and memory that allocators retain.

Pages of the libraries' files do not count, because the system decides how many are resident (50 to 90 MB) and may drop
them.
"""
PANDAS_BYTES = 48_000_000
LARGE_BATCHES_BYTES = 20_000_000
"""Additional memory for large batches: more rows are copied at once when they are ordered and split."""
GROWTH_BYTES_MAX = 8_000_000
SAMPLE_SECONDS = 0.05
GATE_SECONDS = 0.001

CYCLES = 2_000 if SOAK else 1_000
CYCLE_BYTES_MAX = 600
CYCLE_BLOCKS_MAX = 0.25
"""Allowed growth of Python's memory blocks per producer. It is below 1, so a leak of one object is detected."""


@dataclass(frozen=True)
class Measurement:
    """Measured values of a producer process.

    `samples`: resident memory from start to end. `peak_bytes`: peak of the resident memory, from the kernel.
    """

    samples: list[int]
    seconds: float
    written: int
    waited_s: float
    peak_bytes: int
    file_bytes: int

    def find_quarter_peak(self, number: int) -> int:
        size = len(self.samples) // 4
        return max(self.samples[size * (number - 1) : size * number])


class SlowerBroker:
    """Handles Produce requests while the gate is open, when the producer waits for memory or has sent all records."""

    def __init__(self, broker: EmbeddedBroker, gate: Path) -> None:
        self.address = broker.bootstrap_servers
        self.gate = gate
        self._ended = False
        gate.write_bytes(b"0")
        broker.control.when(api=ApiKey.PRODUCE, times=None, matches=self._wait).delay(0)

    def _wait(self, request: Message) -> bool:
        while not self._ended and self.gate.read_bytes() == b"0":
            time.sleep(GATE_SECONDS)
        return False

    def end(self) -> None:
        """Handle all requests from now on, so that the broker's threads can end even if the producer has failed."""
        self._ended = True


@contextmanager
def run_slower_broker(folder: Path) -> Iterator[SlowerBroker]:
    with embedded_broker({"t": 12}, discard=True) as broker:
        slower_broker = SlowerBroker(broker, folder / "gate")
        try:
            yield slower_broker
        finally:
            slower_broker.end()


def measure(broker: SlowerBroker, records: int, *arguments: str) -> Measurement:
    command = [sys.executable, "-m", "integration.support.steady_producer", broker.address, "t", str(records)]
    started_s = time.monotonic()
    samples: list[int] = []
    with subprocess.Popen([*command, str(broker.gate), *arguments], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            samples.append(read_resident_bytes(process.pid))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None
        figures = json.loads(process.stdout.read())
    return Measurement(samples, time.monotonic() - started_s, **figures)


def check(measurement: Measurement, records: int, *, extra_bytes: int = 0) -> list[int]:
    """Check the limits, and return the peaks of the quarters. `extra_bytes`: additional memory of the program."""
    quarters = [measurement.find_quarter_peak(number) for number in (1, 2, 3, 4)]
    print(
        f"{records:,} records in {measurement.seconds:.0f} s, {measurement.waited_s:.0f} s of it waiting for memory; "
        f"peak {measurement.peak_bytes / 1e6:.0f} MB, {measurement.file_bytes / 1e6:.0f} of it libraries; of the "
        "quarters:",
        *(round(quarter / 1e6) for quarter in quarters),
    )
    assert measurement.written == records
    assert measurement.waited_s > 0
    assert measurement.peak_bytes - measurement.file_bytes < ANONYMOUS_BYTES_MAX + extra_bytes
    return quarters


def test_millions_of_records_to_a_slow_broker_take_bounded_memory(tmp_path: Path) -> None:
    with run_slower_broker(tmp_path) as broker:
        _, early_peak, _, late_peak = check(measure(broker, RECORDS), RECORDS)
    assert late_peak < early_peak + GROWTH_BYTES_MAX


@pytest.mark.parametrize(
    ("arguments", "extra_bytes"),
    [
        pytest.param(["--pandas"], PANDAS_BYTES, id="in a program that imports pandas"),
        pytest.param(["--options", '{"compression.type": "lz4"}'], 0, id="compressed"),
    ],
)
def test_other_uses_of_a_producer_with_a_slow_broker_take_bounded_memory(
    arguments: list[str], extra_bytes: int, tmp_path: Path
) -> None:
    with run_slower_broker(tmp_path) as broker:
        check(measure(broker, VARIANT_RECORD_COUNT, *arguments), VARIANT_RECORD_COUNT, extra_bytes=extra_bytes)


@pytest.mark.parametrize("batch_size", [524_288, 1_000_000] if SOAK else [1_000_000])
def test_large_batches_to_a_slow_broker_take_bounded_memory(batch_size: int, tmp_path: Path) -> None:
    with run_slower_broker(tmp_path) as broker:
        measurement = measure(broker, LARGE_BATCH_RECORD_COUNT, "--options", json.dumps({"batch.size": batch_size}))
    check(measurement, LARGE_BATCH_RECORD_COUNT, extra_bytes=LARGE_BATCHES_BYTES)


def test_single_records_to_a_slow_broker_take_bounded_memory(tmp_path: Path) -> None:
    """A record of send() has an overhead of twice its size, which must be bounded as well."""
    with run_slower_broker(tmp_path) as broker:
        check(measure(broker, SINGLE_RECORDS, "--singly"), SINGLE_RECORDS)


def test_producers_one_after_the_other_leave_no_memory_thread_or_descriptor_behind() -> None:
    with embedded_broker({"t": 12}, discard=True) as broker:
        command = [
            sys.executable,
            "-m",
            "integration.support.short_lived_producers",
            broker.bootstrap_servers,
            str(CYCLES),
        ]
        # Otherwise the number of the allocator's arenas would depend on how often threads allocate concurrently.
        environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    early_peak, late_peak = (json.loads(line) for line in result.stdout.splitlines())
    print(early_peak, late_peak)
    assert late_peak["threads"] == early_peak["threads"]
    assert late_peak["descriptors"] == early_peak["descriptors"]
    assert late_peak["blocks"] - early_peak["blocks"] < CYCLES * CYCLE_BLOCKS_MAX
    assert late_peak["resident_bytes"] - early_peak["resident_bytes"] < CYCLES * CYCLE_BYTES_MAX
