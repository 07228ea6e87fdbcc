"""`pykafka verifiable-producer`: a producer that follows the protocol of Kafka's VerifiableProducer, for system tests.

Apache Kafka's system tests (kafkatest) start a client's producer as a process. They read JSON objects from its stdout,
one per line, stop it with a signal, and compare the acknowledged values with those in the topic. The arguments, events
and fields are the same as those of org.apache.kafka.tools.VerifiableProducer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, parse_client_options
from spark_kafka_sink.cli.signal_wait import SignalWait
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.producer.results import RecordMetadata

COMMAND_HELP = (
    "write increasing numbers until stopped, printing a JSON event for each (the protocol of Kafka's system tests)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--producer.config",
        dest="command_config",
        type=Path,
        metavar="FILE",
        help="another name for --command-config",
    )
    parser.add_argument(
        "--max-messages", type=int, default=-1, metavar="N", help="stop after N records (default: never)"
    )
    parser.add_argument(
        "--throughput", type=int, default=-1, metavar="N", help="write at most N records per second (default: no limit)"
    )
    parser.add_argument(
        "--acks",
        type=int,
        default=-1,
        choices=(0, 1, -1),
        help="the option acks, unless -X or the file with options sets it (default: -1)",
    )
    parser.add_argument(
        "--value-prefix", type=int, metavar="N", help="write N.0, N.1, N.2, ... instead of 0, 1, 2, ..."
    )
    parser.add_argument(
        "--repeating-keys",
        type=int,
        metavar="N",
        help="give the records the keys 0 to N - 1 in turn (default: no keys)",
    )
    parser.add_argument(
        "--message-create-time",
        type=int,
        default=-1,
        metavar="MS",
        help="timestamp of the first record, in milliseconds since 1970 (default: the current time)",
    )


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.producer.producer import KafkaProducer

    # Kafka's tool accepts such a number, but its keys then never repeat.
    if args.repeating_keys is not None and args.repeating_keys < 1:
        raise ConfigurationError(f"--repeating-keys must be at least 1, not {args.repeating_keys}")
    # As in Kafka's tool, requests are not retried unless the options say otherwise, because tests count the failures.
    options = {"acks": args.acks, "retries": 0, **parse_client_options(args)}
    events = EventWriter(args.topic)
    start_time_s = time.monotonic()
    with SignalWait() as signals:
        with KafkaProducer(options) as producer:
            events.print("startup_complete")
            sent_count = _send_until_stopped(args, producer, events, signals)
        events.print("shutdown_complete")
    elapsed_s = time.monotonic() - start_time_s
    events.print(
        "tool_data",
        sent=sent_count,
        acked=events.acked_count,
        target_throughput=args.throughput,
        avg_throughput=events.acked_count / elapsed_s,
    )
    return 0


class EventWriter:
    """Prints a producer's events. The producer calls `record_result` on its sender thread."""

    def __init__(self, topic: str) -> None:
        self.acked_count = 0
        self._topic = topic
        self._lock = threading.Lock()

    def print(self, name: str, **fields: object) -> None:
        line = json.dumps({"timestamp": int(time.time() * 1000), "name": name, **fields})
        with self._lock:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def record_result(self, key: str | None, value: str, metadata: RecordMetadata, error: Exception | None) -> None:
        """Count and print an acknowledged record, or print the error of a failed one."""
        if error is None:
            self.acked_count += 1
            self.print(
                "producer_send_success",
                key=key,
                value=value,
                topic=metadata.topic,
                partition=metadata.partition,
                offset=metadata.offset,
            )
            return
        self.print(
            "producer_send_error",
            key=key,
            value=value,
            topic=self._topic,
            exception=type(error).__name__,
            message=str(error),
        )


def _send_until_stopped(
    args: argparse.Namespace, producer: KafkaProducer, events: EventWriter, signals: SignalWait
) -> int:
    """Send records until a signal arrives or --max-messages is reached. Return the number of records sent."""
    start_time_s = time.monotonic()
    keys = _repeat_keys(args.repeating_keys)
    for sent_count in itertools.count():
        due_s = sent_count / args.throughput if args.throughput > 0 else 0.0  # when to send the next record
        elapsed_s = time.monotonic() - start_time_s
        if sent_count == args.max_messages or signals.wait(max(0.0, due_s - elapsed_s)):
            return sent_count
        key = next(keys)
        value = str(sent_count) if args.value_prefix is None else f"{args.value_prefix}.{sent_count}"
        timestamp_ms = None
        if args.message_create_time >= 0:
            timestamp_ms = args.message_create_time + int(elapsed_s * 1000)
        producer.send(
            args.topic,
            value.encode(),
            None if key is None else key.encode(),
            timestamp_ms=timestamp_ms,
            callback=partial(events.record_result, key, value),
        )
    raise AssertionError("itertools.count() does not end")


def _repeat_keys(count: int | None) -> Iterator[str | None]:
    """Yield the keys 0 to `count` - 1 in turn, without end, or only None if `count` is None."""
    return itertools.repeat(None) if count is None else map(str, itertools.cycle(range(count)))
