"""What a cluster that was reached is asked: rights that the write needs, sizes, clocks.

Each is one request to any broker, and harmless:

- InitProducerId without a transactional id: the broker gives out a number that is never used.
- EndTxn for a producer id that no producer has (-1): a broker looks at the user's rights first, and then finds no such
  transaction. Nothing is begun, ended or stored, also where another producer uses the transactional id.
- DescribeConfigs and DescribeQuorum only read.

The right to write to a topic needs no question: metadata names it (reached.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from spark_kafka_sink.client.preflight.checks import Check, Outcome, Patience, Target
from spark_kafka_sink.client.preflight.probe import Answer, Probe
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.protocol.messages.describe_quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from spark_kafka_sink.protocol.messages.describe_quorum_asked import PartitionData, TopicData
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.schema import VersionRange

IDEMPOTENT_WRITE = "idempotent write"
TRANSACTIONS = "transactions"
CLOCK = "clock"

CLOCK_SKEW_MS_MAX = 5_000
"""Tokens, certificates and record timestamps bear a few seconds; people notice more than that."""

_LARGEST = "max.message.bytes"
_END_TXN_VERSIONS = VersionRange(0, 4)
"""Version 5 would also say that the producer speaks the second version of transactions."""

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


@dataclass(frozen=True)
class Question:
    """A request, and the check that its answer makes."""

    name: str
    message: Message
    read: Callable[[Answer], Check]
    versions: VersionRange | None = None
    again: bool = False
    """A warning may pass, and the question is asked again for a while."""


def rights(target: Target) -> Iterator[Question]:
    if target.idempotent:
        yield Question(IDEMPOTENT_WRITE, InitProducerIdRequest(transactional_id=None), _idempotent_write, again=True)
    if target.transactional_id is not None:
        message = EndTxnRequest(transactional_id=target.transactional_id, producer_id=-1, producer_epoch=-1)
        yield Question(TRANSACTIONS, message, partial(_transactions, target), _END_TXN_VERSIONS)


def sizes_and_clocks(topics: Iterable[str], record_bytes_max: int | None) -> Iterator[Question]:
    for topic in topics:
        name = f"largest message of {topic}"
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=[_LARGEST])
        yield Question(
            name, DescribeConfigsRequest(resources=[resource]), partial(_largest_message, name, record_bytes_max)
        )
    partition = TopicData(topic_name=METADATA_TOPIC, partitions=[PartitionData()])
    yield Question(CLOCK, DescribeQuorumRequest(topics=[partition]), _clock)


def ask(probe: Probe, question: Question, patience: Patience) -> Check:
    deadline = probe.now() + patience.faults_ms
    while True:
        check = _ask_once(probe, question, patience.silence_ms)
        if not question.again or check.outcome is not Outcome.WARNING or probe.now() >= deadline:
            return check
        probe.pause()


def _ask_once(probe: Probe, question: Question, patience_ms: float) -> Check:
    try:
        answer = probe.ask(question.message, versions=question.versions, patience_ms=patience_ms)
    except UnsupportedVersionError as error:
        return Check(question.name, Outcome.SKIPPED, str(error))
    if answer.message is None:
        return Check(question.name, Outcome.SKIPPED, f"no answer: {answer.reason}")
    return question.read(answer)


def _idempotent_write(answer: Answer) -> Check:
    assert isinstance(answer.message, InitProducerIdResponse)
    code = answer.message.error_code
    if code == error_codes.NONE:
        return Check(IDEMPOTENT_WRITE, Outcome.PASSED, "a producer id was given")
    error = error_code(code)
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        remedy = (
            "Grant this user Write on the topic (before Kafka 2.8 IdempotentWrite on the cluster), or set "
            "enable.idempotence=false and accept duplicates."
        )
        return Check(IDEMPOTENT_WRITE, Outcome.FAILED, f"this user may not ({error.name})", remedy)
    return Check(IDEMPOTENT_WRITE, Outcome.WARNING if error.retriable else Outcome.FAILED, error.name, error.advice)


def _transactions(target: Target, answer: Answer) -> Check:
    assert isinstance(answer.message, EndTxnResponse)
    error = error_code(answer.message.error_code)
    if error.code in _TRANSACTION_RIGHTS_ARE_THERE:
        return Check(TRANSACTIONS, Outcome.PASSED, "this user may write in them")
    if error.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        prefix = target.transactional_id_prefix
        ids = f"all transactional ids with the prefix {prefix}" if prefix else "this transactional id"
        detail = f"this user may not use the transactional id {target.transactional_id}"
        return Check(TRANSACTIONS, Outcome.FAILED, detail, f"Grant this user Write and Describe on {ids}.")
    return Check(TRANSACTIONS, Outcome.WARNING, error.name, error.advice)


def _largest_message(name: str, record_bytes_max: int | None, answer: Answer) -> Check:
    assert isinstance(answer.message, DescribeConfigsResponse)
    for result in answer.message.results:
        if result.error_code != error_codes.NONE:
            error = error_code(result.error_code)
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


def _clock(answer: Answer) -> Check:
    """By the clock of the active controller, which its own entry among the voters shows."""
    assert isinstance(answer.message, DescribeQuorumResponse)
    if answer.message.error_code != error_codes.NONE:
        name = error_code(answer.message.error_code).name
        return Check(CLOCK, Outcome.SKIPPED, f"{name}: to see the controller's takes the right Describe on the cluster")
    times = [
        voter.last_caught_up_timestamp
        for topic in answer.message.topics
        for partition in topic.partitions
        for voter in partition.current_voters
        if voter.replica_id == partition.leader_id
    ]
    if not times or times[0] < 0:
        return Check(CLOCK, Outcome.SKIPPED, "the brokers do not show theirs")
    ahead_ms = times[0] - answer.wall_ms
    detail = f"the controller's is {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms >= 0 else 'behind'} this one's"
    if abs(ahead_ms) <= CLOCK_SKEW_MS_MAX:
        return Check(CLOCK, Outcome.PASSED, detail)
    remedy = "Set both by NTP: tokens, certificates and the timestamps of records are judged by these clocks."
    return Check(CLOCK, Outcome.WARNING, detail, remedy)
