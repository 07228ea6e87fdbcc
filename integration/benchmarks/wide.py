"""Benchmark of one producer with many partitions and brokers: first acknowledgement, records and metadata refreshes.

    python -m integration.benchmarks.wide [--rounds 3]

An embedded broker with 3 or 100 nodes, which acknowledges and counts records without storing them, runs in a separate
process. The contenders, pykafka with columns and librdkafka, take turns, each in a new process. Rows have real lengths
(rows.py) and random keys. The settings are those of the Spark sink: batches of 512 kB and a linger of 100 ms. `first`
is measured from the creation of the producer to its first acknowledgement, and includes connections and metadata. The
other figures are measured from then to the last acknowledgement.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from integration.benchmarks.page import FULL, Line, Scale, build_line, iterate_turns
from integration.benchmarks.rows import SHAPES

ROWS = 10_000
RECORDS = 1_000_000
NODES = (3, 100)
PARTITIONS = (12, 900, 9_000)
"""Number of partitions of each topic. The embedded broker supports at most 10,000 in all topics together."""
OPTIONS = {"batch.size": 524_288, "linger.ms": 100}
REFRESHES = 5
MAX_AGE_MS = 300_000
"""metadata.max.age.ms of both producers: the time between two metadata requests if nothing changes."""

Figures = dict[str, float]
"""cpu_ns per record, first_ms and first_cpu_ms, peak_mb of memory, requests, refresh_cpu_ms per metadata refresh."""


def run_pykafka(bootstrap: str, topic: str, records: int) -> Figures:
    from spark_kafka_sink import KafkaProducer, RecordColumns

    key, value = SHAPES["real"](ROWS)
    meter = Meter()
    with KafkaProducer({"bootstrap.servers": bootstrap, "send.buffer.bytes": -1, **OPTIONS}) as producer:
        producer.send_columns(topic, RecordColumns(value=value.slice(0, 1), key=key.slice(0, 1))).result(60)
        figures = meter.finish_first_phase()
        futures = [producer.send_columns(topic, RecordColumns(value=value, key=key)) for _ in range(records // ROWS)]
        producer.flush(600)
        figures |= meter.measure_rest(records)
        for future in futures:
            future.result(0).raise_for_failures()
        figures["requests"] = producer.metric("request-total")
        meter = Meter()
        for _ in range(REFRESHES):
            version = producer._metadata.request_update()
            producer._client.wakeup()
            producer._metadata.await_update(version, 60_000)
        figures["refresh_cpu_ms"] = meter.finish_first_phase()["first_cpu_ms"] / REFRESHES
    return figures


def run_librdkafka(bootstrap: str, topic: str, records: int) -> Figures:
    from confluent_kafka import Producer

    from integration.support.librdkafka import produce_all  # here, so that pykafka's process does not load it

    stats: dict[str, Any] = {}
    keys, values = (column.to_pylist() for column in SHAPES["real"](ROWS))
    meter = Meter()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            "statistics.interval.ms": 1_000,
            "stats_cb": lambda text: stats.update(json.loads(text)),
            **OPTIONS,
        }
    )
    producer.produce(topic, values[0], keys[0])
    producer.flush(60)
    figures = meter.finish_first_phase()
    produce_all(producer, topic, itertools.islice(itertools.cycle(zip(keys, values, strict=True)), records))
    figures |= meter.measure_rest(records)
    producer.poll(2)  # receives the last statistics
    figures["requests"] = float(sum(broker["tx"] for broker in stats.get("brokers", {}).values()))
    return figures


class Meter:
    """Measures the time and CPU of this process since the meter was created."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._seconds, self._cpu = time.perf_counter(), read_cpu_seconds()

    def finish_first_phase(self) -> Figures:
        """Return the time and CPU so far, and restart the measurement."""
        figures = {
            "first_ms": 1e3 * (time.perf_counter() - self._seconds),
            "first_cpu_ms": 1e3 * self._compute_cpu_since_begin(),
        }
        self._begin()
        return figures

    def measure_rest(self, records: int) -> Figures:
        """Return the CPU per record since `finish_first_phase`, and the peak memory since the start of the process."""
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"cpu_ns": 1e9 * self._compute_cpu_since_begin() / records, "peak_mb": peak_kb / 1024}

    def _compute_cpu_since_begin(self) -> float:
        return read_cpu_seconds() - self._cpu


def read_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


CONTENDERS: dict[str, Callable[[str, str, int], Figures]] = {"pykafka": run_pykafka, "confluent-kafka": run_librdkafka}


@contextlib.contextmanager
def run_cluster(nodes: int) -> Iterator[str]:
    """Start a cluster with a topic for each number of partitions. Yield its address."""
    broker = f"-m spark_kafka_sink.cli broker --port 0 --discard --num-io-threads 0 --no-auto-create --nodes {nodes}"
    command = [sys.executable, *broker.split()]
    for partitions in PARTITIONS:
        command += ["--topic", f"p{partitions}:{partitions}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(line.split()[2].rstrip(",") for line in process.stdout if line.startswith("listening on "))
    finally:
        process.terminate()
        with process:
            process.wait()


def measure(contender: str, bootstrap: str, partitions: int, records: int) -> Figures:
    """Run a contender in a new process, and return its figures."""
    command = [sys.executable, "-m", "integration.benchmarks.wide", "--contender", contender]
    command += ["--bootstrap", bootstrap, "--topic", f"p{partitions}", "--records", str(records)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def build_case_name(contender: str, nodes: int, partitions: int) -> str:
    return f"{contender}, {nodes} brokers, {partitions:,} partitions"


RoundFigures = dict[str, list[Figures]]


def measure_rounds(rounds: int, records: int, clusters: Sequence[int] = NODES) -> RoundFigures:
    """Return the figures of each round, by `build_case_name` of contender, cluster and topic."""
    results: RoundFigures = {}
    for nodes in clusters:
        with run_cluster(nodes) as bootstrap:
            cases = {
                build_case_name(contender, nodes, count): (contender, count)
                for count in PARTITIONS
                for contender in CONTENDERS
            }
            for turn, name in iterate_turns(list(cases), rounds):
                contender, partitions = cases[name]
                results.setdefault(name, []).append(measure(contender, bootstrap, partitions, records))
                print(f"round {turn + 1}: {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    return results


def build_lines(results: RoundFigures, clusters: Sequence[int] = NODES) -> Iterator[Line]:
    fewest_partitions, most_partitions = PARTITIONS[0], PARTITIONS[-1]
    for nodes in clusters:
        for partitions in PARTITIONS:
            pair = build_case_name("pykafka", nodes, partitions), build_case_name("confluent-kafka", nodes, partitions)
            yield build_line(
                f"CPU of {nodes} brokers, {partitions:,} partitions", "ns/record", results, "cpu_ns", pair, ""
            )
        pykafka_many = build_case_name("pykafka", nodes, most_partitions)
        few_partitions_pair = pykafka_many, build_case_name("pykafka", nodes, fewest_partitions)
        librdkafka_pair = pykafka_many, build_case_name("confluent-kafka", nodes, most_partitions)
        conditions = f"{nodes} brokers, {most_partitions:,} partitions"
        yield build_line(
            f"... {conditions} to {fewest_partitions}", "ns/record", results, "cpu_ns", few_partitions_pair, "4"
        )
        yield build_line(
            f"first acknowledgement, {conditions}: CPU (goal 200 ms)",
            "ms",
            results,
            "first_cpu_ms",
            librdkafka_pair,
            "",
        )
        yield build_line(f"most memory, {conditions} (goal 230 MB)", "MB", results, "peak_mb", librdkafka_pair, "")
        yield build_line(f"requests, {conditions}", "requests", results, "requests", librdkafka_pair, "")
        shares = [100 * run["refresh_cpu_ms"] / MAX_AGE_MS for run in results[pykafka_many]]
        yield Line(f"refreshes of metadata, {conditions}: of a core", "%", shares, [1.0] * len(shares), "the goal", "1")


def measure_lines(scale: Scale) -> Iterator[Line]:
    """Yield the lines of this benchmark.

    Each round starts a process for every cluster, topic and contender, so there are fewer rounds than in the other
    benchmarks, and a quick run has only the smallest cluster.
    """
    clusters = NODES if scale is FULL else NODES[:1]
    yield from build_lines(
        measure_rounds(scale.rounds // 2, scale.scale_count(RECORDS // ROWS, 20) * ROWS, clusters), clusters
    )


def compare(rounds: int, records: int) -> None:
    print("| | CPU per record | first: time / CPU | memory | requests | refresh: CPU |\n|---|---:|---:|---:|---:|---:|")
    for name, runs in measure_rounds(rounds, records).items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        refresh = f"{middle['refresh_cpu_ms']:.1f} ms" if "refresh_cpu_ms" in middle else ""
        first = f"{middle['first_ms']:,.0f} / {middle['first_cpu_ms']:,.0f} ms"
        figures = f"{middle['cpu_ns']:,.0f} ns | {first} | {middle['peak_mb']:,.0f} MB | {middle['requests']:,.0f}"
        print(f"| {name} | {figures} | {refresh} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="One producer and many partitions on many brokers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=RECORDS)
    for hidden in ("--contender", "--bootstrap", "--topic"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps(CONTENDERS[arguments.contender](arguments.bootstrap, arguments.topic, arguments.records)))
    else:
        compare(arguments.rounds, arguments.records)


if __name__ == "__main__":
    main()
