"""The checks that send a request to a cluster that was reached: rights that the write needs, sizes, clocks.

Each check is a function that yields what it needs for a target, and `CLUSTER_CHECKS` or `THOROUGH_CHECKS` names it. The
requests are for any broker, and harmless:

- InitProducerId without a transactional id: the broker gives out a number that is never used.
- EndTxn for a producer id that no producer has (-1): a broker looks at the user's rights first, and then finds no such
  transaction. Nothing is begun, ended or stored, also where another producer uses the transactional id.
- CreateTopics that only validates, DescribeConfigs and DescribeQuorum change nothing.

The right to write to a topic needs no request: metadata names it (reached.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from spark_kafka_sink.preflight.checks import Check, Outcome, Target
from spark_kafka_sink.preflight.creation import creation_check
from spark_kafka_sink.preflight.probe import Exchange
from spark_kafka_sink.preflight.request_check import RequestCheck
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse
from spark_kafka_sink.protocol.messages.describe_quorum import DescribeQuorumResponse
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.quorum import DescribeQuorum
from spark_kafka_sink.requests.request import Role, Route
from spark_kafka_sink.requests.topics import DescribeTopicConfigs
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import EndTransaction
from spark_kafka_sink.requests.verdicts import Verdict

IDEMPOTENT_WRITE = "idempotent write"
TRANSACTIONS = "transactions"
CLOCK = "clock"

CLOCK_SKEW_MS_MAX = 5_000
"""Tokens, certificates and record timestamps bear a few seconds; people notice more than that."""

_LARGEST = "max.message.bytes"
_TRANSACTION_RIGHTS_ARE_THERE = frozenset(
    {
        error_codes.NONE,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.INVALID_TXN_STATE,
        error_codes.NOT_COORDINATOR,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""With these a broker answers after it has found the user's rights sufficient."""


class TryEndTransaction(EndTransaction):
    """Try the right to end transactions of an id, with any broker and for a producer id that no producer has."""

    verdicts = dict.fromkeys(_TRANSACTION_RIGHTS_ARE_THERE, Verdict.DONE)

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER


def idempotent_write(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    if target.idempotent:
        yield RequestCheck(IDEMPOTENT_WRITE, InitProducerId(None), _idempotent_write)


def _idempotent_write(exchange: Exchange[InitProducerIdResponse]) -> Check:
    code = exchange.response.error_code
    if code == error_codes.NONE:
        return Check(IDEMPOTENT_WRITE, Outcome.PASSED, "a producer id was given")
    error = lookup_error_code(code)
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        remedy = (
            "Grant this user Write on the topic (before Kafka 2.8 IdempotentWrite on the cluster), or set "
            "enable.idempotence=false and accept duplicates."
        )
        return Check(IDEMPOTENT_WRITE, Outcome.FAILED, f"this user may not ({error.name})", remedy)
    return Check(IDEMPOTENT_WRITE, Outcome.WARNING if error.retriable else Outcome.FAILED, error.name, error.advice)


def transactions(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    if target.transactional_id is not None:
        request = TryEndTransaction(TransactionIdentity(target.transactional_id, -1, -1, version=1), commit=False)
        yield RequestCheck(TRANSACTIONS, request, partial(_transactions, target))


def _transactions(target: Target, exchange: Exchange[EndTxnResponse]) -> Check:
    error = lookup_error_code(exchange.response.error_code)
    if error.code in _TRANSACTION_RIGHTS_ARE_THERE:
        return Check(TRANSACTIONS, Outcome.PASSED, "this user may write in them")
    if error.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        prefix = target.transactional_id_prefix
        ids = f"all transactional ids with the prefix {prefix}" if prefix else "this transactional id"
        detail = f"this user may not use the transactional id {target.transactional_id}"
        return Check(TRANSACTIONS, Outcome.FAILED, detail, f"Grant this user Write and Describe on {ids}.")
    return Check(TRANSACTIONS, Outcome.WARNING, error.name, error.advice)


def largest_messages(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    found = {topic.name for topic in topics if not topic.error_code}
    for topic in target.topics:
        if topic in found:
            name = f"largest message of {topic}"
            evaluate = partial(_largest_message, name, target.record_bytes_max)
            yield RequestCheck(name, DescribeTopicConfigs(topic, [_LARGEST]), evaluate)


def _largest_message(name: str, record_bytes_max: int | None, exchange: Exchange[DescribeConfigsResponse]) -> Check:
    for result in exchange.response.results:
        if result.error_code != error_codes.NONE:
            error = lookup_error_code(result.error_code)
            return Check(name, Outcome.SKIPPED, f"{error.name}: to see it takes the right DescribeConfigs on the topic")
        for config in result.configs:
            if config.name == _LARGEST and config.value is not None and config.value.isdecimal():
                return _compared(name, int(config.value), record_bytes_max)
    return Check(name, Outcome.SKIPPED, f"the broker did not say its {_LARGEST}")


def _compared(name: str, topic_bytes_max: int, record_bytes_max: int | None) -> Check:
    detail = f"the topic takes {topic_bytes_max} bytes in a batch ({_LARGEST})"
    if record_bytes_max is None or record_bytes_max <= topic_bytes_max:
        return Check(name, Outcome.PASSED, detail)
    detail += f", and max.request.size is {record_bytes_max}"
    remedy = (
        f"The broker refuses records between the two sizes: raise {_LARGEST} of the topic, or lower max.request.size."
    )
    return Check(name, Outcome.WARNING, detail, remedy)


def clock(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Compare this machine's clock with that of the active controller."""
    yield RequestCheck(CLOCK, DescribeQuorum(), _clock)


def _clock(exchange: Exchange[DescribeQuorumResponse]) -> Check:
    """The controller's own entry among the voters shows its clock."""
    if exchange.response.error_code != error_codes.NONE:
        name = lookup_error_code(exchange.response.error_code).name
        return Check(CLOCK, Outcome.SKIPPED, f"{name}: to see the controller's takes the right Describe on the cluster")
    times = [
        voter.last_caught_up_timestamp
        for topic in exchange.response.topics
        for partition in topic.partitions
        for voter in partition.current_voters
        if voter.replica_id == partition.leader_id
    ]
    if not times or times[0] < 0:
        return Check(CLOCK, Outcome.SKIPPED, "the brokers do not show theirs")
    ahead_ms = times[0] - exchange.wall_ms
    detail = f"the controller's is {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms >= 0 else 'behind'} this one's"
    if abs(ahead_ms) <= CLOCK_SKEW_MS_MAX:
        return Check(CLOCK, Outcome.PASSED, detail)
    remedy = "Set both by NTP: tokens, certificates and the timestamps of records are judged by these clocks."
    return Check(CLOCK, Outcome.WARNING, detail, remedy)


_ClusterCheck = Callable[[Target, Sequence[MetadataResponseTopic]], Iterator[RequestCheck[Any] | Check]]
"""The checks for a target, given the topics that metadata has found."""

CLUSTER_CHECKS: Sequence[_ClusterCheck] = (creation_check, idempotent_write, transactions)
"""In the order in which they are shown."""

THOROUGH_CHECKS: Sequence[_ClusterCheck] = (largest_messages, clock)
"""Additional checks of `pykafka doctor`."""
