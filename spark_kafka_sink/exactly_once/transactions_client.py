"""TransactionsClient: questions to the coordinators of transactions, each asked until it has an answer.

A coordinator may be unknown, move, start or be busy with a transaction that still ends: then the question is asked
again after a pause, until `timeout_ms` have passed. What is final comes back as it is: a success, or a refusal that the
caller must judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.sending import transaction_requests as requests
from spark_kafka_sink.producer.sending.coordinators import COMPLETING_PAUSE_MS
from spark_kafka_sink.producer.sending.open_transaction import PreparedTransaction
from spark_kafka_sink.producer.sending.partition_states import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.transaction_answers import Verdict, verdict
from spark_kafka_sink.producer.sending.transaction_requests import TRANSACTION, Kind, VersionedMessage
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.blocking_client import BlockingClient, Question

ONGOING, EMPTY = "Ongoing", "Empty"
"""States of a transactional id. Empty: a producer has asked for it, and has begun nothing since."""
TRANSACTION_VERSION = "transaction.version"
TIMEOUT_MS = 120_000.0
"""The longest time without any progress."""
_IN_FLIGHT_MAX = 50
_PAUSE_MS_MAX = 1_000.0
_ABORT_TIMEOUT_MS = 60_000
"""For an id that is only aborted: its next user says another one."""

AnswerT = TypeVar("AnswerT", bound=Message)


@dataclass(frozen=True)
class TransactionDescription:
    """What a coordinator knows of a transactional id."""

    transactional_id: str
    state: str
    id_and_epoch: ProducerIdAndEpoch
    timeout_ms: int = 0
    started_ms: int = -1
    """By the broker's clock; -1 if no transaction is open."""
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING


class TransactionsClient:
    """A context manager. Used by one thread. `blocking` may be used for other questions in between."""

    def __init__(self, config: ClientConfig, *, timeout_ms: float = TIMEOUT_MS, system: System | None = None) -> None:
        config = replace(config, max_in_flight_requests_per_connection=_IN_FLIGHT_MAX)
        self.blocking = BlockingClient(config, timeout_ms=timeout_ms, system=system)
        self._coordinators: dict[str, Node] = {}

    def __enter__(self) -> TransactionsClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.blocking.close()

    # --- questions

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch = NO_PRODUCER_ID
    ) -> ProducerIdAndEpoch:
        """Fence all that have the id, abort what they left open, and have it. BrokerError if it is refused.

        `expected`: only if the id is still this producer's; else it is refused as fenced.
        """
        question = requests.init(transactional_id, timeout_ms, expected)
        answers = self._ask(Kind.INIT, InitProducerIdResponse, {transactional_id: question}, _code)
        answer = answers[transactional_id]
        if answer.error_code != error_codes.NONE:
            raise _refused(Kind.INIT, transactional_id, answer.error_code)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def end(self, prepared: Sequence[PreparedTransaction], *, commit: bool) -> dict[str, BrokerError]:
        """Commit or abort all of them. Returns what was refused, by transactional id.

        A transaction that has ended so already is no refusal, as long as nothing has begun under its id since. What has
        begun since, under a newer epoch, is left alone.
        """
        questions = {
            each.transactional_id: requests.end(each.transactional_id, each.id_and_epoch, each.version, commit=commit)
            for each in prepared
        }
        answers = self._ask(Kind.END, EndTxnResponse, questions, _code)
        return {
            name: _refused(Kind.END, name, answer.error_code)
            for name, answer in answers.items()
            if answer.error_code != error_codes.NONE
        }

    def abort(self, transactions: Mapping[str, ProducerIdAndEpoch]) -> None:
        """Abort these transactions, and let nothing more be written under their epochs.

        The producer id is asked for anew, because this fences: the end of a transaction does not, in version 1, and
        what a task that still lives writes after it would hold readers back for ever with brokers before Kafka 3.6.
        """
        questions = {name: requests.init(name, _ABORT_TIMEOUT_MS, known) for name, known in transactions.items()}
        self._ask(Kind.INIT, InitProducerIdResponse, questions, _code, enough=error_codes.CONCURRENT_TRANSACTIONS)

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """What coordinators know of these ids; those that they do not know are missing."""
        question = {name: (DescribeTransactionsRequest(transactional_ids=[name]), None) for name in transactional_ids}
        answers = self._ask(Kind.END, DescribeTransactionsResponse, question, _described_code)
        found: dict[str, TransactionDescription] = {}
        for name, answer in answers.items():
            code = _described_code(answer)
            if code == error_codes.NONE:
                row = answer.transaction_states[0]
                found[name] = TransactionDescription(
                    name,
                    row.transaction_state,
                    ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
                    row.transaction_timeout_ms,
                    row.transaction_start_time_ms,
                    tuple((topic.topic, index) for topic in row.topics for index in topic.partitions),
                )
            elif code != error_codes.TRANSACTIONAL_ID_NOT_FOUND:
                raise broker_error(code, f"transactional id {name}: the attempt to describe it was refused")
        return found

    def ids(self, wanted: Callable[[str], bool], *states: str) -> list[str]:
        """The transactional ids, of those that are wanted, that are in one of these states. All brokers are asked."""
        patience = self.blocking.patience("the list of transactions")
        message = ListTransactionsRequest(state_filters=list(states))
        listed: dict[int, list[str]] = {}
        while True:
            nodes = [node for node in self._all_nodes() if node.id not in listed]
            if not nodes and listed:
                return sorted({name for names in listed.values() for name in names if wanted(name)})
            failure: KafkaSinkError | None = None
            answers = self.blocking.ask_all(ListTransactionsResponse, [Question(node, message) for node in nodes])
            for node, answer in zip(nodes, answers, strict=True):
                if isinstance(answer, NetworkError):
                    failure = answer
                elif answer.error_code == error_codes.NONE:
                    listed[node.id] = [row.transactional_id for row in answer.transaction_states]
                else:
                    failure = broker_error(answer.error_code, f"{node}: the attempt to list transactions was refused")
                    if not error_codes.error_code(answer.error_code).retriable:
                        raise failure
            if failure is not None or not nodes:
                # What one of them coordinates may move to one that has answered.
                listed.clear()
                self.blocking.metadata.request_update()
                patience.wait(failure, COMPLETING_PAUSE_MS)

    @property
    def transaction_version(self) -> int:
        """What the cluster has agreed on, as far as it is known: 2 or 1."""
        return 2 if self.blocking.feature(TRANSACTION_VERSION) >= 2 else 1

    # --- parts

    def _all_nodes(self) -> list[Node]:
        known = self.blocking.metadata.snapshot
        return [] if known.is_bootstrap else list(known.nodes.values())

    def _ask(
        self,
        kind: Kind,
        answer_type: type[AnswerT],
        questions: Mapping[str, VersionedMessage],
        code_of: Callable[[AnswerT], int],
        *,
        enough: int = error_codes.NONE,
    ) -> dict[str, AnswerT]:
        """One question for each transactional id, to its coordinator, until each has a final answer.

        `enough`: an error which says that what was asked for has begun.
        """
        done: dict[str, AnswerT] = {}
        patience = self.blocking.patience(f"the attempt to {kind.value}")
        pause_ms = COMPLETING_PAUSE_MS
        while left := [name for name in questions if name not in done]:
            nodes = self._coordinators_of(left)
            asked = [Question(nodes[name], *questions[name]) for name in left]
            failure: KafkaSinkError | None = None
            for name, answer in zip(left, self.blocking.ask_all(answer_type, asked), strict=True):
                if isinstance(answer, NetworkError):
                    self._coordinators.pop(name, None)
                    failure = answer
                    continue
                code = code_of(answer)
                follows = Verdict.DONE if code == enough else verdict(kind, code)
                if follows not in (Verdict.RETRY, Verdict.LOOK_UP):
                    done[name] = answer
                    continue
                if follows is Verdict.LOOK_UP:
                    self._coordinators.pop(name, None)
                failure = _refused(kind, name, code)
            if failure is not None:
                patience.wait(failure, pause_ms)
                pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
        return done

    def _coordinators_of(self, transactional_ids: Sequence[str]) -> Mapping[str, Node]:
        patience = self.blocking.patience("the coordinators of transactions")
        while unknown := [name for name in transactional_ids if name not in self._coordinators]:
            node = self.blocking.any_node()
            failure: KafkaSinkError | None = None
            if node is not None:
                try:
                    failure = self._look_up(node, unknown)
                except NetworkError as error:
                    failure = error
            if failure is not None or node is None:
                patience.wait(failure, COMPLETING_PAUSE_MS)
        return self._coordinators

    def _look_up(self, node: Node, transactional_ids: Sequence[str]) -> KafkaSinkError | None:
        """What may pass is returned, what may not is raised."""
        several = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=list(transactional_ids))
        try:
            versions = VersionRange(requests.SEVERAL_KEYS_FROM, FindCoordinatorRequest.VERSIONS.max)
            answer = self.blocking.ask(node, FindCoordinatorResponse, several, versions=versions)
            rows = [(row.key, row.error_code, Node(row.node_id, row.host, row.port)) for row in answer.coordinators]
        except UnsupportedVersionError:
            rows = [self._look_up_one(node, name) for name in transactional_ids]
        failure: KafkaSinkError | None = None
        for name, code, coordinator in rows:
            if code == error_codes.NONE:
                self._coordinators[name] = coordinator
                continue
            failure = _refused(Kind.FIND_COORDINATOR, name, code)
            if verdict(Kind.FIND_COORDINATOR, code) is not Verdict.RETRY:
                raise failure
        return failure

    def _look_up_one(self, node: Node, name: str) -> tuple[str, int, Node]:
        """By brokers before Kafka 3.0, which take one key in a request."""
        message = FindCoordinatorRequest(key_type=TRANSACTION, key=name)
        versions = VersionRange(TRANSACTION, requests.SEVERAL_KEYS_FROM - 1)
        answer = self.blocking.ask(node, FindCoordinatorResponse, message, versions=versions)
        return name, answer.error_code, Node(answer.node_id, answer.host, answer.port)


def _code(answer: InitProducerIdResponse | EndTxnResponse) -> int:
    return answer.error_code


def _described_code(answer: DescribeTransactionsResponse) -> int:
    return answer.transaction_states[0].error_code if answer.transaction_states else error_codes.UNKNOWN_SERVER_ERROR


def _refused(kind: Kind, transactional_id: str, code: int) -> BrokerError:
    return broker_error(code, f"transactional id {transactional_id}: the attempt to {kind.value} was refused")
