"""Benchmark of encoding, compared with a bare join of four pieces of the same rows.

    python -m integration.benchmarks.encoder

It runs in one process on one core. In each round, all variants take turns. The results are medians of the rounds, in
CPU time. Nanoseconds depend on the machine and its load; the ratios of one run depend on them much less.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from integration.benchmarks.rows import SHAPES
from spark_kafka_sink.records.batch_slicing import (
    BatchSlices,
    PartitionSlices,
    build_consecutive_slices,
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.freed_memory import reuse_freed_memory
from spark_kafka_sink.records.header import HEADER_BYTES, encode_header
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds

ROWS = 10_000
ROUNDS = 41
CALLS = 5
NOW = 1_790_000_000_000
TOTALS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CHUNKS = (1_000, 10_000)

HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def build_headers() -> pa.Array:
    """Build headers with a trace id and a source."""
    trace_ids = [b"%d" % (i * i) for i in range(ROWS)]
    return pa.array(
        [[{"key": "trace-id", "value": trace_id}, {"key": "source", "value": b"spark"}] for trace_id in trace_ids],
        HEADER_TYPE,
    )


def build_varying_headers() -> pa.Array:
    """Build 0 to 3 headers per row, with values of 0 to 89 bytes."""
    lists = [[{"key": f"key{i % 7}", "value": b"x" * (i % 90)}] * (i % 4) for i in range(ROWS)]
    return pa.array(lists, HEADER_TYPE)


def build_columns(shape: str, rows: int = ROWS) -> RecordColumns:
    key, value = SHAPES[shape](rows)
    return RecordColumns(value, key)


def build_bare_join_call(rows: int = ROWS) -> Callable[[], object]:
    """Join four existing arrays of each record with Arrow: numbers, key, length and value."""
    key, value = SHAPES["real"](rows)
    numbers = pa.array([b"p" * (7 if i % 130 < 64 else 8) for i in range(rows)])
    pieces = (numbers, key, pa.array([b"mm"] * rows), value, pa.scalar(b"", pa.binary()))
    return lambda: pc.binary_join_element_wise(*pieces)


def plan_batches(columns: RecordColumns, slices: PartitionSlices, batch_bytes: int) -> BatchSlices:
    return split_into_batches(
        compute_record_size_bounds(columns), slices, batch_bytes, find_timestamp_range(columns, NOW)
    )


def build_slices(stops: list[int]) -> PartitionSlices:
    """Build consecutive slices that end at `stops`, without open batches."""
    count = len(stops)
    return PartitionSlices([0, *stops[:-1]], stops, [0] * count, [HEADER_BYTES] * count, [None] * count)


def build_encoding_call(columns: RecordColumns, batch_bytes: int = 16_384) -> Callable[[], object]:
    plan = plan_batches(columns, build_single_partition_slices(columns.num_rows), batch_bytes)
    return lambda: encode_records(columns, plan, NOW)


def build_cutting_call(columns: RecordColumns, rows: int) -> Callable[[], object]:
    slices = build_slices([min(start + rows, ROWS) for start in range(0, ROWS, rows)])
    return lambda: plan_batches(columns, slices, 16_384)


def build_partitioned_encoding_call(columns: RecordColumns, partitions: int) -> Callable[[], object]:
    """Encode unordered rows in the order of their partitions."""
    partitions_by_row = np.random.default_rng(1).integers(0, partitions, ROWS)
    order = partitions_by_row.argsort(kind="stable").astype(np.int32)
    stops = np.bincount(partitions_by_row).cumsum().tolist()
    plan = plan_batches(columns.take(order), build_slices(stops), 16_384)
    return lambda: encode_records(columns, plan, NOW, order)


def build_decoding_call(columns: RecordColumns) -> Callable[[], object]:
    (encoded,) = encode_records(columns, build_consecutive_slices([ROWS]), NOW)
    header = encode_header(
        [encoded.data], last_offset_delta=ROWS - 1, record_count=ROWS, base_timestamp=NOW, max_timestamp=NOW
    )
    batch = header + bytes(encoded.data)
    return lambda: list(decode_batches(batch))


def build_variants() -> dict[str, Callable[[], object]]:
    real, even = build_columns("real"), build_columns("even")
    times = pa.array([NOW + i % 1000 for i in range(ROWS)])
    return {
        "bare join of four pieces": build_bare_join_call(),
        "real rows": build_encoding_call(real),
        "real rows, batches of 512 kB": build_encoding_call(real, 512 << 10),
        "even rows": build_encoding_call(even),
        "even rows, batches of 512 kB": build_encoding_call(even, 512 << 10),
        "real rows, twelve partitions, in no order": build_partitioned_encoding_call(real, 12),
        "real rows, 1,000 partitions, in no order": build_partitioned_encoding_call(real, 1_000),
        "real rows without keys": build_encoding_call(RecordColumns(real.value)),
        "real rows, timestamps that vary": build_encoding_call(RecordColumns(real.value, real.key, timestamp=times)),
        "real rows, two headers": build_encoding_call(RecordColumns(real.value, real.key, build_headers())),
        "real rows, none to three headers": build_encoding_call(
            RecordColumns(real.value, real.key, build_varying_headers())
        ),
        "sizes and cutting, real rows, twelve partitions": build_cutting_call(real, ROWS // 12),
        "sizes and cutting, real rows, 1,000 partitions": build_cutting_call(real, ROWS // 1_000),
        "decoding, real rows": build_decoding_call(real),
        "decoding, even rows": build_decoding_call(even),
    }


def measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the nanoseconds per record of each variant: the median of the rounds, each with several calls."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.process_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.process_time() - started) / CALLS / ROWS * 1e9)
    return {name: statistics.median(variant_times) for name, variant_times in times.items()}


def measure_cost_by_total() -> dict[int, list[float]]:
    """Return the nanoseconds per record for each total in TOTALS, with calls of each maximum size in CHUNKS."""
    source = build_columns("real")
    times_by_total: dict[int, list[list[float]]] = {total: [[] for _ in CHUNKS] for total in TOTALS}
    for _ in range(5):
        for total in TOTALS:
            for times, rows in zip(times_by_total[total], CHUNKS, strict=True):
                size = min(rows, total)
                parts = [source.slice(start, size) for start in range(0, ROWS, size)]
                repeats = max(1, 100_000 // total)
                started = time.process_time()
                for index in range(repeats * total // size):
                    encode_records(parts[index % len(parts)], build_consecutive_slices([size]), NOW)
                times.append((time.process_time() - started) / repeats / total * 1e9)
    return {total: [statistics.median(times) for times in chunk_times] for total, chunk_times in times_by_total.items()}


MEMORY_ROWS = 200_000


def measure_peak_memory() -> dict[str, float]:
    """Return the peak memory of encoding as a multiple of the input's size, for 200,000 rows.

    The rows are encoded as a single batch, and in batches of 8,000 rows, each in a new process. The memory is resident
    memory, and includes the result but not the input.
    """
    ratios = {}
    for kind in ("plain", "headers"):
        for batch_rows in (MEMORY_ROWS, 8_000):
            program = f"from integration.benchmarks.encoder import *; print_memory({kind!r}, {batch_rows})"
            completed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
            input_bytes, peak_bytes = map(int, completed.stdout.split())
            ratios[f"{kind}, batches of {batch_rows:,} records"] = peak_bytes / input_bytes
    return ratios


def print_memory(kind: str, batch_rows: int) -> None:
    """Encode rows once, and print the bytes of the input and the peak memory of encoding."""
    records = build_columns("real", MEMORY_ROWS)
    if kind == "headers":
        all_headers = pa.concat_arrays([build_headers()] * (MEMORY_ROWS // ROWS))
        records = RecordColumns(records.value, records.key, all_headers)
    reuse_freed_memory()
    encode_records(records.slice(0, 10), build_consecutive_slices([10]), NOW)
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    stops = [start + batch_rows for start in range(0, MEMORY_ROWS, batch_rows)]
    encoded_records = encode_records(records, build_consecutive_slices(stops), NOW)
    status = Path("/proc/self/status").read_text().splitlines()
    (peak_kib,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    print(records.nbytes, peak_kib * 1024 - before_bytes)
    del encoded_records  # the result counts, so it lives until the peak has been read


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    reuse_freed_memory()
    costs = measure(build_variants())
    bare, real = costs["bare join of four pieces"], costs["real rows"]
    print("| 10,000 records, batches of 16 kB | ns per record | to the bare join | to real rows |\n|---|---|---|---|")
    for name, cost in costs.items():
        print(f"| {name} | {cost:.0f} | {cost / bare:.2f} | {cost / real:.2f} |")
    totals = measure_cost_by_total()
    titles = "".join(f" in calls of {rows:,}, ns per record | to {rows:,} |" for rows in CHUNKS)
    print(f"\n| records in all |{titles}\n|---|" + "---|" * 2 * len(CHUNKS))
    for total, times in totals.items():
        cells = "".join(
            f" {cost:.0f} | {cost / totals[rows][index]:.2f} |"
            for index, (cost, rows) in enumerate(zip(times, CHUNKS, strict=True))
        )
        print(f"| {total:,} |{cells}")
    print("\n| peak memory besides 200,000 records of input | times their bytes |\n|---|---|")
    for kind, ratio in measure_peak_memory().items():
        print(f"| {kind} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
