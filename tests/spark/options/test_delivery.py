"""The options of exactly-once delivery, and other options that conflict with them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
from spark_kafka_sink.spark.exactly_once import build_job_settings, build_stream_settings
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions

ONCE = {"deliveryGuarantee": "exactly-once", "checkpointLocation": "/checkpoint"}


def parse(**text: str) -> SinkOptions:
    return parse_options({"kafka.bootstrap.servers": "b:1", **text})


def problems(**text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as error:
        parse(**text)
    return error.value.problems


def test_returns_no_exactly_once_options_by_default() -> None:
    assert parse().exactly_once_options is None
    assert parse(deliveryGuarantee=" At-Least-Once ").exactly_once_options is None


def test_unset_options_have_defaults() -> None:
    assert parse(**ONCE).exactly_once_options == ExactlyOnceOptions(
        None, None, "pykafka-decisions", -1, None, "/checkpoint"
    )


def test_uses_options_that_are_set() -> None:
    options = {
        "transactionalIdPrefix": "orders",
        "idempotencyKey": "today",
        "decisionLogTopic": "log",
        "decisionLogReplication": "3",
        "kafka.transaction.timeout.ms": "70000",
    }
    assert parse(**ONCE, **options).exactly_once_options == ExactlyOnceOptions(
        "orders", "today", "log", 3, 70_000, "/checkpoint"
    )


@pytest.mark.parametrize("text", ["5000", "+5000", " 5000 ", "05000"])
def test_uses_transaction_timeout_of_user_in_any_notation(text: str) -> None:
    delivery = parse(**ONCE, **{"kafka.transaction.timeout.ms": text}).exactly_once_options
    assert delivery is not None
    assert delivery.transaction_timeout_ms == 5000


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("deliveryGuarantee", "exactly once", "must be one of at-least-once, exactly-once. It is 'exactly once'."),
        ("onRecordError", "deadLetter", "so 'onRecordError' must be 'fail': after a rejected record"),
        ("kafka.acks", "1", "so kafka.acks must be all"),
        ("kafka.enable.idempotence", "false", "so kafka.enable.idempotence must not be false"),
        ("kafka.retries", "0", "so kafka.retries must not be 0"),
        ("kafka.retries", "00", "so kafka.retries must not be 0"),
        ("kafka.max.in.flight.requests.per.connection", "6", "must be at most 5"),
        (
            "transactionalIdPrefix",
            "a b",
            "cannot be used: it must have 1 to 200 letters, digits, '.', '_' and",
        ),
        ("transactionalIdPrefix", " ", "Option 'transactionalIdPrefix' cannot be used: it must have 1 to 200 letters"),
        (
            "transactionalIdPrefix",
            "x" * 201,
            "Option 'transactionalIdPrefix' cannot be used: it must have 1 to 200 letters",
        ),
        (
            "transactionalIdPrefix",
            "pykafka-job-nightly",
            "Option 'transactionalIdPrefix' cannot be used: it must not begin with 'pykafka-job-'. The sink generates",
        ),
        ("idempotencyKey", "x" * 201, "must have 1 to 200 characters; it has 201"),
        ("decisionLogTopic", "a/b", "Option 'decisionLogTopic' must be a topic name"),
        ("decisionLogReplication", "0", "must be -1 or a number from 1 to 32767. It is '0'."),
        ("kafka.transaction.timeout.ms", "soon", "kafka.transaction.timeout.ms must be"),
        ("kafka.transactional.id", "mine", "each task needs its own transactional id"),
    ],
)
def test_rejects_options_that_conflict_with_exactly_once(name: str, value: str, words: str) -> None:
    more = {"deadLetterTopic": "dead"} if name == "onRecordError" else {}
    assert any(words in problem for problem in problems(**ONCE | {name: value} | more))


@pytest.mark.parametrize(
    "name", ["transactionalIdPrefix", "idempotencyKey", "decisionLogTopic", "decisionLogReplication"]
)
def test_rejects_option_without_effect(name: str) -> None:
    assert problems(**{name: "1"}) == (f"Option '{name}' has no effect unless 'deliveryGuarantee' is 'exactly-once'.",)


def test_derives_stream_prefix_from_checkpoint_and_keeps_it_after_restart() -> None:
    first, again = (
        build_stream_settings(parse(**ONCE | {"checkpointLocation": path})) for path in ("/a/b", "file:/a/b/")
    )
    other = build_stream_settings(parse(**ONCE))
    assert first.prefix == again.prefix != other.prefix
    assert not first.has_user_prefix


def test_stream_requires_a_stable_name_and_rejects_a_key() -> None:
    with pytest.raises(ConfigurationError, match="requires a name for this query that stays the same"):
        build_stream_settings(parse(deliveryGuarantee="exactly-once"))
    with pytest.raises(ConfigurationError, match="'idempotencyKey' is for batch jobs"):
        build_stream_settings(parse(**ONCE, idempotencyKey="k"))
    named = build_stream_settings(parse(deliveryGuarantee="exactly-once", transactionalIdPrefix="orders"))
    assert (named.prefix, named.has_user_prefix) == ("orders", True)


def test_job_uses_prefix_of_user_with_any_key() -> None:
    for more in ({}, {"idempotencyKey": "k"}):
        named = build_job_settings(parse(deliveryGuarantee="exactly-once", transactionalIdPrefix="orders", **more))
        assert (named.prefix, named.has_user_prefix, named.is_single_use) == ("orders", True, False)
