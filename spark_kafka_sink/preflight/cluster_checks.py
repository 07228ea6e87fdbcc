"""Checks that send requests to a connected cluster: permissions for the write, message sizes and clocks.

Each check is a generator that yields the requests needed for the given target. `CLUSTER_CHECKS` and `THOROUGH_CHECKS`
list these generators. Any broker can handle the requests, and none of them changes anything:

- InitProducerId without a transactional id allocates a producer id that is never used.
- EndTxn is sent for producer id -1, which no producer has. The broker first checks the user's permissions and then
  finds no such transaction. Nothing is begun, ended or stored, even if another producer uses the transactional id.
- CreateTopics with validate_only, DescribeConfigs and DescribeQuorum only return information.

The exception is `check_first_epoch`, which only `pykafka doctor` runs: its request must be sent to the coordinator, and
leaves an unused transactional id behind, which the brokers delete after transactional.id.expiration.ms.

No request is needed to check the permission to write to a topic or to read it, because the topic's metadata contains it
(connectivity_checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY
from spark_kafka_sink.preflight.checks import CheckResult, Outcome, Target
from spark_kafka_sink.preflight.creation_check import check_topic_creation
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
FIRST_EPOCH = "first epoch"
CLOCK = "clock"

MAX_CLOCK_SKEW_MS = 5_000
"""The largest difference between two clocks that is harmless for tokens, certificates and record timestamps."""

_FIRST_EPOCH_TIMEOUT_MS = 60_000
"""The transaction timeout in the request of `check_first_epoch`. It has no effect, as no transaction is begun."""
_MAX_MESSAGE_BYTES_CONFIG = "max.message.bytes"
_AUTHORIZED_ERRORS = frozenset(
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
"""Error codes that show that the user is authorized, because a broker returns them only after it has checked that."""


class EndTransactionProbe(EndTransaction):
    """Probes whether the user may end transactions of a transactional id. Any broker can respond."""

    verdicts = dict.fromkeys(_AUTHORIZED_ERRORS, Verdict.DONE)

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER


def check_idempotent_write(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Check that the user may obtain a producer id, if the write is idempotent."""
    if target.idempotent:
        yield RequestCheck(IDEMPOTENT_WRITE, InitProducerId(transactional_id=None), _evaluate_idempotent_write)


def _evaluate_idempotent_write(exchange: Exchange[InitProducerIdResponse]) -> CheckResult:
    """Pass if the broker allocated a producer id."""
    code = exchange.response.error_code
    if code == error_codes.NONE:
        return CheckResult(IDEMPOTENT_WRITE, Outcome.PASSED, "the broker allocated a producer id")
    error = lookup_error_code(code)
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        detail = f"this user is not authorized ({error.name})"
        return CheckResult(IDEMPOTENT_WRITE, Outcome.FAILED, detail, error.advice)
    outcome = Outcome.WARNING if error.retriable else Outcome.FAILED
    return CheckResult(IDEMPOTENT_WRITE, outcome, error.name, error.advice)


def check_transactions(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Check that the user may use the target's transactional id, by asking to end a transaction that cannot exist."""
    if target.transactional_id is not None:
        identity = TransactionIdentity(target.transactional_id, producer_id=-1, epoch=-1, version=1)
        request = EndTransactionProbe(identity, commit=False)
        yield RequestCheck(TRANSACTIONS, request, partial(_evaluate_transactions, target))


def _evaluate_transactions(target: Target, exchange: Exchange[EndTxnResponse]) -> CheckResult:
    """Pass if the broker rejected the transaction only after authorizing the user."""
    error = lookup_error_code(exchange.response.error_code)
    if error.code in _AUTHORIZED_ERRORS:
        return CheckResult(TRANSACTIONS, Outcome.PASSED, "this user is authorized to use transactions")
    if error.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        prefix = target.transactional_id_prefix
        required_ids = f"all transactional ids with the prefix {prefix}" if prefix else "this transactional id"
        detail = f"this user is not authorized to use the transactional id {target.transactional_id}"
        remedy = f"Grant this user the Write and Describe permissions on {required_ids}."
        return CheckResult(TRANSACTIONS, Outcome.FAILED, detail, remedy)
    return CheckResult(TRANSACTIONS, Outcome.WARNING, error.name, error.advice)


def check_message_sizes(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Compare max.message.bytes of each existing topic with the producer's max.request.size."""
    existing_topics = {topic.name for topic in topics if not topic.error_code}
    for topic in target.topics:
        if topic in existing_topics:
            check_name = f"largest message of {topic}"
            request = DescribeTopicConfigs(topic, [_MAX_MESSAGE_BYTES_CONFIG])
            evaluate = partial(_evaluate_message_size, check_name, request, target.max_record_bytes)
            yield RequestCheck(check_name, request, evaluate)


def _evaluate_message_size(
    name: str, request: DescribeTopicConfigs, max_record_bytes: int | None, exchange: Exchange[DescribeConfigsResponse]
) -> CheckResult:
    """Compare the topic's limit for batches with the largest record. Skip the check if the limit is not known."""
    code = request.classify(exchange.response).code
    # If the response has no result for the topic, the code comes from `classify`, not from the broker.
    if exchange.response.results and code != error_codes.NONE:
        detail = f"{lookup_error_code(code).name}: this check requires the DescribeConfigs permission on the topic"
        return CheckResult(name, Outcome.SKIPPED, detail)
    max_batch_bytes = request.parse_values(exchange.response).get(_MAX_MESSAGE_BYTES_CONFIG, "")
    if not max_batch_bytes.isdecimal():
        return CheckResult(name, Outcome.SKIPPED, f"the broker did not return {_MAX_MESSAGE_BYTES_CONFIG}")
    return _compare_message_size(name, int(max_batch_bytes), max_record_bytes)


def _compare_message_size(name: str, max_batch_bytes: int, max_record_bytes: int | None) -> CheckResult:
    """Warn if the producer allows records that the topic rejects. `max_record_bytes`: None if there is no limit."""
    detail = f"the topic accepts batches of {max_batch_bytes} bytes ({_MAX_MESSAGE_BYTES_CONFIG})"
    if max_record_bytes is None or max_record_bytes <= max_batch_bytes:
        return CheckResult(name, Outcome.PASSED, detail)
    detail += f", and max.request.size is {max_record_bytes}"
    remedy = (
        f"The broker rejects records between the two sizes. Increase {_MAX_MESSAGE_BYTES_CONFIG} of the topic, or "
        "decrease max.request.size."
    )
    return CheckResult(name, Outcome.WARNING, detail, remedy)


def check_first_epoch(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Request a transactional id's first epoch in the same way as the driver of an exactly-once write does.

    The request contains a producer id that the transactional id cannot have. Apache Kafka grants the first epoch
    anyway, and rejects later requests because the producer seems to be fenced. Some other brokers reject even the
    first request.
    """
    if target.exactly_once and target.transactional_id_prefix:
        transactional_id = f"{target.transactional_id_prefix.rstrip('-')}-doctor"
        request = InitProducerId(transactional_id, _FIRST_EPOCH_TIMEOUT_MS, UNUSED_IDENTITY)
        yield RequestCheck(FIRST_EPOCH, request, _evaluate_first_epoch)


def _evaluate_first_epoch(exchange: Exchange[InitProducerIdResponse]) -> CheckResult:
    """Pass if the broker granted the first epoch, now or in a previous run of this check."""
    error = lookup_error_code(exchange.response.error_code)
    # If the transactional id got its first epoch in an earlier run of this check, Apache Kafka responds with
    # PRODUCER_FENCED, or with INVALID_PRODUCER_EPOCH if the version of the request is below 4.
    is_granted_or_fenced = error.code in (
        error_codes.NONE,
        error_codes.PRODUCER_FENCED,
        error_codes.INVALID_PRODUCER_EPOCH,
    )
    if is_granted_or_fenced:
        return CheckResult(
            FIRST_EPOCH, Outcome.PASSED, "the brokers grant the first epoch to a new id, as Apache Kafka does"
        )
    if error.code == error_codes.INVALID_PRODUCER_ID_MAPPING:
        detail = (
            f"{error.name}: the broker rejected InitProducerId with an expected producer id for a transactional id "
            "that it does not know. Apache Kafka accepts such a request"
        )
        remedy = (
            "Exactly-once delivery is not possible with this cluster. Remove deliveryGuarantee, or use other brokers."
        )
        return CheckResult(FIRST_EPOCH, Outcome.FAILED, detail, remedy)
    if error.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return CheckResult(FIRST_EPOCH, Outcome.SKIPPED, f"{error.name}: see the check {TRANSACTIONS}")
    return CheckResult(FIRST_EPOCH, Outcome.WARNING, error.name, error.advice)


def check_clock(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
    """Compare this machine's clock with that of the active controller."""
    yield RequestCheck(CLOCK, DescribeQuorum(), _evaluate_clock)


def _evaluate_clock(exchange: Exchange[DescribeQuorumResponse]) -> CheckResult:
    """Warn if the controller's clock differs from this machine's by more than MAX_CLOCK_SKEW_MS."""
    if exchange.response.error_code != error_codes.NONE:
        error_name = lookup_error_code(exchange.response.error_code).name
        is_unauthorized = exchange.response.error_code == error_codes.CLUSTER_AUTHORIZATION_FAILED
        reason = "; this check requires the Describe permission on the cluster" if is_unauthorized else ""
        return CheckResult(CLOCK, Outcome.SKIPPED, f"{error_name}{reason}")
    # The response contains, for each voter, when it last caught up with the leader. For the leader itself, this is its
    # current time. The leader of the metadata partition is the active controller.
    controller_times_ms = (
        voter.last_caught_up_timestamp
        for topic in exchange.response.topics
        for partition in topic.partitions
        for voter in partition.current_voters
        if voter.replica_id == partition.leader_id
    )
    # Brokers send -1 if they do not know the time, so use -1, too, if the response does not contain the leader.
    controller_time_ms = next(controller_times_ms, -1)
    if controller_time_ms < 0:
        return CheckResult(CLOCK, Outcome.SKIPPED, "the brokers did not return the controller's time")
    skew_ms = controller_time_ms - exchange.wall_ms
    direction = "ahead of" if skew_ms >= 0 else "behind"
    detail = f"the controller's clock is {abs(skew_ms) / 1000:.1f} s {direction} the clock of this machine"
    if abs(skew_ms) <= MAX_CLOCK_SKEW_MS:
        return CheckResult(CLOCK, Outcome.PASSED, detail)
    remedy = "Synchronize both clocks with NTP. Tokens, certificates and record timestamps depend on them."
    return CheckResult(CLOCK, Outcome.WARNING, detail, remedy)


_CheckFactory = Callable[[Target, Sequence[MetadataResponseTopic]], Iterator[RequestCheck[Any] | CheckResult]]
"""A function that takes a target and the topics in the metadata. It yields checks, or results that need no request."""

CLUSTER_CHECKS: Sequence[_CheckFactory] = (check_topic_creation, check_idempotent_write, check_transactions)
"""The checks that run before each write, in order."""

THOROUGH_CHECKS: Sequence[_CheckFactory] = (check_first_epoch, check_message_sizes, check_clock)
"""The additional checks of `pykafka doctor`."""
