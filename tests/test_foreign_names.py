"""Sanitizing: no string of a broker's response reaches a log or an error unchanged.

Messages are declarations, so the test finds their string fields by walking them. It appends a line break and an ESC to
each of them, in successful and in failed responses, while producers, transactions, preflight checks, a reader and an
exactly-once driver use the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafka_sink.broker.context import RequestContext
from spark_kafka_sink.broker.handlers import load_handler
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions, ExactlyOnceSettings
from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, Target, build_preflight_error, preflight
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_response_type
from spark_kafka_sink.protocol.schema import Struct, get_field_specs
from spark_kafka_sink.reader.reader import TopicReader
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer
from tests.simulated_cluster import SimulatedCluster

EVIL = "\nforged line\x1b[31m"
Path = tuple[str, ...]

SPOKEN_BY_SASL = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""APIs whose responses arrive before a channel is ready; tests/network/security covers them."""
ASKED = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.CREATE_TOPICS,
}


def find_string_fields(kind: type[Struct], before: Path = ()) -> Iterator[Path]:
    """Return the paths of all fields with a string or an array of strings."""
    for name, spec in get_field_specs(kind).items():
        if spec.type_name == "string" or spec.inner_type == "string":
            yield (*before, name)
        elif isinstance(spec.inner_type, type) and issubclass(spec.inner_type, Struct):
            yield from find_string_fields(spec.inner_type, (*before, name))


FIELDS = [(api, path) for api in sorted(ASKED) for path in find_string_fields(load_response_type(api))]


def structs_at(value: Any, path: Path) -> Iterator[Struct]:
    if not path:
        yield value
        return
    inner = getattr(value, path[0])
    for node in inner if isinstance(inner, list) else [] if inner is None else [inner]:
        yield from structs_at(node, path[1:])


def poisoned(message: Message, path: Path, code: int) -> Message:
    for struct in structs_at(message, path[:-1]):
        original = getattr(struct, path[-1])
        poisoned_value = (
            [f"{item}{EVIL}" for item in original] if isinstance(original, list) else f"{original or ''}{EVIL}"
        )
        setattr(struct, path[-1], poisoned_value)
    if code:
        refuse(message, code)
    return message


def refuse(struct: Struct, code: int) -> None:
    """Set every error code of a response."""
    for name, spec in get_field_specs(type(struct)).items():
        value = getattr(struct, name)
        if name.endswith("error_code"):
            setattr(struct, name, code)
        elif spec.inner_type is not None:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Struct):
                    refuse(item, code)


def sent(producer: KafkaProducer) -> object:
    future = producer.send("t", b"v")
    producer.flush()
    return future.exception(0)


def read_error_text(step: Callable[[], object]) -> str:
    try:
        return str(step())
    except KafkaSinkError as error:
        return str(error)


def writing(cluster: SimulatedCluster) -> Iterator[Callable[[], object]]:
    limits = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 1_000, "max_block_ms": 3_000, "linger_ms": 0}
    producer = create_simulated_producer(cluster, **limits)
    yield lambda: sent(producer)
    yield lambda: producer.close(0)
    for version in (1, 2):
        cluster.core.coordinator.version = version
        yield from in_transactions(create_simulated_producer(cluster, transactional_id=f"x{version}", **limits))


def in_transactions(producer: KafkaProducer) -> Iterator[Callable[[], object]]:
    yield producer.init_transactions
    yield producer.begin_transaction
    yield lambda: sent(producer)
    yield lambda: producer.send_offsets_to_transaction({("t", 0): 1}, "group")
    yield producer.commit_transaction
    yield lambda: producer.close(0)


def checking(cluster: SimulatedCluster) -> Iterator[Callable[[], object]]:
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})
    target = Target(["t"], idempotent=True, transactional_id="x")

    def checks() -> str:
        found = preflight(config, target, timeouts=INTERACTIVE_TIMEOUTS, thorough=True, system=cluster.system)
        error = build_preflight_error(found)
        return "".join(map(str, found)).replace("\n", "") if error is None else f"{found} {error!r}"

    yield checks


def reading(cluster: SimulatedCluster) -> Iterator[Callable[[], object]]:
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})

    def read() -> None:
        with TopicReader(config, system=cluster.system, timeout_ms=3_000) as reader:
            list(reader.read("t"))

    yield read


def deciding(cluster: SimulatedCluster) -> Iterator[Callable[[], object]]:
    """Run an exactly-once micro-batch up to its commit, then start another driver."""
    limits = {"retry.backoff.ms": "10", "request.timeout.ms": "1000"}
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers, **limits})
    options = ExactlyOnceOptions(log_topic="decisions", transaction_timeout_ms=60_000)
    settings = ExactlyOnceSettings(config, "p", options, writer_kind=WriterKind.STREAM)

    def batch(number: int) -> None:
        with Driver(settings, system=cluster.system) as driver:
            start = driver.begin(f"start {number}")
            producer = create_simulated_producer(cluster, transactional_id="x", max_block_ms=3_000)
            try:
                producer.init_transactions(start.build_task_id(0, 0))
                producer.begin_transaction()
                producer.send("t", b"v")
                prepared = producer.prepare_transaction()
                assert prepared is not None
                driver.commit(start, Batch("q", number), [prepared], BatchSummary.from_row_counts({"t": 1}, 1))
            finally:
                producer.close(0)

    for number in range(2):
        yield lambda number=number: batch(number)  # type: ignore[misc]


CONVERSATIONS = {  # conversations that send a request of the API
    ApiKey.DESCRIBE_TRANSACTIONS: [deciding],
    ApiKey.LIST_TRANSACTIONS: [deciding],
    ApiKey.CREATE_TOPICS: [deciding],
    ApiKey.DESCRIBE_CONFIGS: [checking, deciding],
    ApiKey.DESCRIBE_QUORUM: [checking],
    ApiKey.ADD_PARTITIONS_TO_TXN: [writing],
    ApiKey.TXN_OFFSET_COMMIT: [writing],
    ApiKey.FIND_COORDINATOR: [writing, checking, deciding],
    ApiKey.PRODUCE: [writing],
    ApiKey.FETCH: [reading],
    ApiKey.LIST_OFFSETS: [reading],
    ApiKey.METADATA: [writing, checking, reading],
    ApiKey.API_VERSIONS: [writing, checking, reading],
}


@pytest.mark.parametrize(
    "code", [error_codes.NONE, error_codes.INVALID_REQUEST, error_codes.TOPIC_AUTHORIZATION_FAILED]
)
@pytest.mark.parametrize(("api", "path"), FIELDS, ids=[f"{api.name}-{'.'.join(path)}" for api, path in FIELDS])
def test_sanitizes_every_string_of_a_response(
    api: ApiKey, path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "spark_kafka_sink")
    handle = load_handler(api).handle

    def handle_and_poison(context: RequestContext, request: Any) -> Any:
        result = handle(context, request)
        return poisoned(result, path, code) if isinstance(result, Message) else result

    shown: list[str] = []
    monkeypatch.setattr(load_handler(api), "handle", handle_and_poison)
    for conversation in CONVERSATIONS[api]:
        cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1})
        shown += [read_error_text(step) for step in conversation(cluster)]
    shown += caplog.text.split("spark_kafka_sink")
    assert [words for words in shown if "\x1b" in words or "\nforged" in words] == []


def test_covers_every_response_that_clients_read() -> None:
    assert FIELDS
    assert not ASKED & SPOKEN_BY_SASL
