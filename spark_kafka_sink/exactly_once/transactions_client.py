"""TransactionsClient: questions to the coordinators of transactions, each asked until it has an answer.

A coordinator may be unknown, move, start or be busy with a transaction that still ends: then the question is asked
again after a pause, until `timeout_ms` have passed without any progress. What is final comes back as it is: a success,
or a refusal that the caller must judge. All ids of a call are asked about at the same time
(exactly_once/coordinator_questions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.closing import Closing
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError
from spark_kafka_sink.exactly_once.coordinator_questions import CoordinatorQuestions, pause_ms
from spark_kafka_sink.exactly_once.log_writer import Held, KeyValue, LogWriter, OpenWrite
from spark_kafka_sink.exactly_once.timeout_marks import fenced_ms
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.requests import (
    AddPartitions,
    DescribeTransactions,
    EndTransaction,
    InitProducerId,
    codes_of_partitions,
)
from spark_kafka_sink.producer.transactions.transaction_description import COMPLETE_ABORT, TransactionDescription
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.producer.transactions.verdicts import NOT_THE_CALLERS, Judgement, Verdict, may_pass
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from spark_kafka_sink.protocol.messages.list_transactions import TransactionState as ListedTransaction
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient, Question

_log = logging.getLogger(__name__)

TIMEOUT_MS = 120_000.0
"""The longest time without any progress."""
SILENCE_MS = 3_000.0
"""A node that owes an answer is given up after this silence, and gets more time when it is asked again."""
_IN_FLIGHT_MAX = 50
_NO_HOLDER = ProducerIdAndEpoch(2**62, 0)
"""No producer has this id."""


def expected_of(seen: TransactionDescription | None) -> ProducerIdAndEpoch:
    """What a request for the next epoch expects of an id that was described; None: that brokers do not know.

    If the first record of an id could not be written, brokers know its producer id and no epoch. They refuse such a
    half identity as an invalid request, and take any whole one as long as the id has no epoch. Once it has one, they
    refuse that of no producer.
    """
    return _NO_HOLDER if seen is None or seen.id_and_epoch.epoch < 0 else seen.id_and_epoch


def _with_added(listed: TransactionDescription, now: TransactionDescription | None) -> TransactionDescription:
    """As it was listed, and open if it is so `now`, under the same epoch: with all partitions that it had or has."""
    if now is None or not now.is_open or now.id_and_epoch != listed.id_and_epoch:
        return listed
    return replace(now, topics=listed.topics + now.topics)


def _warn_of(what: str, refused: Iterable[BrokerError]) -> None:
    """Of those that say something else than that the id is another's by now."""
    for error in refused:
        if error.code not in NOT_THE_CALLERS:
            _log.warning("%s: %s", what, error)


class _AddIfThere(AddPartitions):
    """Brokers that do not know one of the partitions refuse all, for as long as one asks: its topic was deleted."""

    verdicts = AddPartitions.verdicts | {error_codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.ABORTABLE}

    def without_unknown(self, answer: AddPartitionsToTxnResponse) -> _AddIfThere | None:
        """The request to ask next. None if there is nothing to be asked."""
        codes = codes_of_partitions(answer)
        there = frozenset(each for each in self.partitions if codes.get(each) != error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        return _AddIfThere(self.transaction, there) if there and there != self.partitions else None


class Listing(NamedTuple):
    """Questions which transactions brokers know of, on their way."""

    asked: dict[Node, Asked]
    older: int
    """Metadata that are newer than this say which brokers there are."""


class TransactionsClient(Closing):
    """A context manager. Used by one thread. `blocking` may be used for other questions in between."""

    def __init__(self, config: ClientConfig, *, timeout_ms: float = TIMEOUT_MS, system: System | None = None) -> None:
        config = replace(config, max_in_flight_requests_per_connection=_IN_FLIGHT_MAX)
        self.blocking = BlockingClient(config, timeout_ms=timeout_ms, silence_ms=SILENCE_MS, system=system)
        self._coordinated = CoordinatorQuestions(self.blocking)
        self._writer = LogWriter(self.blocking, self._coordinated)

    def close(self) -> None:
        self.blocking.close()

    # --- questions

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch = NO_PRODUCER_ID
    ) -> ProducerIdAndEpoch:
        """Fence all producers of the id, abort what they left open, and take the id over. BrokerError if it is refused.

        `expected`: only if the id is still this producer's; else it is refused as fenced.
        """
        request = InitProducerId(transactional_id, timeout_ms, expected)
        answer = self._coordinated.answer(request)
        if answer.error_code != error_codes.NONE:
            raise request.refusal(transactional_id, request.judged(answer))
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def end(
        self,
        prepared: Sequence[TransactionIdentity],
        *,
        commit: bool,
        meanwhile: Callable[[], None] = lambda: None,
        patience_ms: float | None = None,
    ) -> dict[str, BrokerError]:
        """Commit or abort all of them. Returns what was refused, by transactional id. `patience_ms`: as for `abort`.

        A transaction that has ended so already is no refusal, as long as nothing has begun under its id since. What has
        begun since, under a newer epoch, is left alone.
        """
        requests = {each.transactional_id: EndTransaction(each, commit) for each in prepared}
        return {
            name: requests[name].refusal(name, requests[name].judged(answer))
            for name, answer in self._coordinated.answers(requests.values(), meanwhile, patience_ms).items()
            if answer.error_code != error_codes.NONE
        }

    def abort(self, listed: Sequence[TransactionDescription], patience_ms: float | None = None) -> None:
        """Abort exactly these, and let nothing more be written under their epochs: ids that were listed before, which
        are open or given to somebody who has begun nothing. What has begun since, under a newer epoch, is left alone.

        Each is ended, which is refused if its epoch is not the newest. To ask for its next epoch would abort whatever
        is open now, since Kafka compares no epochs while a transaction is open; and ids are used again. In version 2
        the end of a transaction moves the epoch on, also where nothing has begun. So it fences the attempt.

        `patience_ms`: how long each of these steps may bring nothing; the client's patience by default.
        """
        version = self.transaction_version
        if version < 2:
            listed = self._as_they_are(listed, patience_ms)
        wanted = listed if version >= 2 else [each for each in listed if each.is_open]
        identities = [TransactionIdentity(each.transactional_id, *each.id_and_epoch, version) for each in wanted]
        refused = self.end(identities, commit=False, patience_ms=patience_ms)
        _warn_of("a transaction could not be aborted", refused.values())
        if version < 2:
            ended = [each for each in listed if each.transactional_id not in refused]
            self._fence_in_version_1(ended, patience_ms)

    def _as_they_are(
        self, listed: Sequence[TransactionDescription], patience_ms: float | None
    ) -> list[TransactionDescription]:
        """What was listed, and the partitions that were added since. What has another epoch now stays as it was.

        If a coordinator does not answer, everything stays as it was: the others are to end what they have at once.
        """
        try:
            now = self.describe([each.transactional_id for each in listed], patience_ms=patience_ms) if listed else {}
        except KafkaSinkError as error:
            _log.warning("what is to be aborted could not be looked at once more: %s", error)
            return list(listed)
        return [_with_added(each, now.get(each.transactional_id)) for each in listed]

    def _fence_in_version_1(self, ended: Sequence[TransactionDescription], patience_ms: float | None) -> None:
        """Fence those that still have the epoch under which they were listed.

        An end does not fence in version 1, and one that has begun nothing cannot be ended. So brokers are asked for the
        next epoch, with a timeout that says so, until they answer: "concurrent" may mean the attempt's own first
        request as well. They would abort what another has begun between the look and this request.

        That alone does not stop a task that has added its partitions already: leaders before Kafka 3.6 look at no
        coordinator, and would take what it still sends, which no marker ends. So these partitions get a marker of the
        next epoch as well. What a task adds between the end and the fence is aborted by the fence, which is refused
        then: such an id is fenced once more.
        """
        now = self.describe([each.transactional_id for each in ended], patience_ms=patience_ms) if ended else {}
        same = [
            each
            for each in ended
            if each.transactional_id in now and now[each.transactional_id].id_and_epoch == each.id_and_epoch
        ]
        answers = self._fenced(same, patience_ms)
        answers |= self._fenced(self._aborted_by_fences(same, answers, patience_ms), patience_ms)
        self._fence_at_leaders([each for each in same if each.is_open], answers, patience_ms)

    def _aborted_by_fences(
        self,
        fenced: Sequence[TransactionDescription],
        answers: Mapping[str, InitProducerIdResponse],
        patience_ms: float | None,
    ) -> list[TransactionDescription]:
        """What had something open when its fence came, as it is now: under the next epoch, with nothing begun."""
        following = {
            each.transactional_id: each.id_and_epoch._replace(epoch=each.id_and_epoch.epoch + 1)
            for each in fenced
            if answers[each.transactional_id].error_code in NOT_THE_CALLERS
        }
        now = self.describe(following, patience_ms=patience_ms) if following else {}
        return [
            each for name, each in now.items() if each.state == COMPLETE_ABORT and each.id_and_epoch == following[name]
        ]

    def _fenced(
        self, looked_at: Sequence[TransactionDescription], patience_ms: float | None
    ) -> dict[str, InitProducerIdResponse]:
        fences = [
            InitProducerId(each.transactional_id, fenced_ms(each.timeout_ms), expected_of(each)) for each in looked_at
        ]
        answers = self._coordinated.answers(fences, timeout_ms=patience_ms)
        codes = {each: answers[each.transactional_id].error_code for each in fences}
        refused = [
            each.refusal(each.transactional_id, Judgement(Verdict.REFUSED, code))
            for each, code in codes.items()
            if code
        ]
        _warn_of("an attempt that may come late could not be fenced", refused)
        return answers

    def _fence_at_leaders(
        self,
        ended: Sequence[TransactionDescription],
        answers: Mapping[str, InitProducerIdResponse],
        patience_ms: float | None,
    ) -> None:
        """Abort an empty transaction of the next epoch in the partitions that each of these had."""
        additions: list[_AddIfThere] = []
        for each in ended:
            answer = answers.get(each.transactional_id)
            if answer is not None and answer.error_code == error_codes.NONE:
                following = TransactionIdentity(
                    each.transactional_id, answer.producer_id, answer.producer_epoch, version=1
                )
                places = frozenset(TopicPartition(*place) for place in each.partitions)
                additions.append(_AddIfThere(following, places))
        added = self._coordinated.answers(additions, timeout_ms=patience_ms)
        fewer = [each.without_unknown(added[each.transaction.transactional_id]) for each in additions]
        self._coordinated.answers([each for each in fewer if each is not None], timeout_ms=patience_ms)
        self.end([each.transaction for each in additions], commit=False, patience_ms=patience_ms)

    def start_write(
        self, transactional_id: str, held: Held, place: TopicPartition, key_values: Sequence[KeyValue]
    ) -> OpenWrite:
        """Begin a transaction with these records, which are one batch, for the caller to end (log_writer.py)."""
        return self._writer.start(transactional_id, held, place, key_values)

    def describe(
        self,
        transactional_ids: Iterable[str],
        meanwhile: Callable[[], None] = lambda: None,
        *,
        patience_ms: float | None = None,
    ) -> dict[str, TransactionDescription]:
        """What coordinators know of these ids; those that they do not know are missing. Each is asked about all its
        ids in one request. `patience_ms`: as for `abort`."""
        request = DescribeTransactions(tuple(transactional_ids))
        answers = self._coordinated.answers([request], meanwhile, patience_ms)
        # Each is read once: it is about many ids, and has all partitions of each.
        distinct = {id(answer): answer for answer in answers.values()}
        read = {key: (request.judged_by_id(answer), request.found(answer)) for key, answer in distinct.items()}
        found: dict[str, TransactionDescription] = {}
        for name, answer in answers.items():
            judged, described = read[id(answer)]
            if judged[name].verdict is not Verdict.DONE:
                raise request.refusal(name, judged[name])
            description = described[name]
            if description is not None:
                found[name] = description
        return found

    def ids(self, wanted: Callable[[str], bool], *states: str, ahead: Listing | None = None) -> list[str]:
        """The transactional ids, of those that are wanted, that are in one of these states.

        Every broker that the cluster has now is asked: a new broker may coordinate ids that another broker had before.
        `ahead`: the same question about these states, which was put before.
        """
        return sorted({row.transactional_id for row in self._rows(states, ahead) if wanted(row.transactional_id)})

    def list_ahead(self, *states: str) -> Listing:
        """Ask all brokers that are known for the ids in these states, and do not wait: `ids` takes the answers.

        It also asks which brokers there are, so that `ids` can ask those that are not known yet.
        """
        known = self.blocking.metadata.snapshot
        asked = self._ask(states, () if known.is_bootstrap else known.nodes.values())
        return Listing(asked, self.blocking.metadata.request_update(reset_backoff=True))

    def owners(self) -> dict[int, str]:
        """Which transactional id has which producer id, of those that this user may see."""
        return {row.producer_id: row.transactional_id for row in self._rows((), None)}

    def _ask(self, states: Sequence[str], nodes: Iterable[Node]) -> dict[Node, Asked]:
        message = ListTransactionsRequest(state_filters=list(states))
        return {node: self.blocking.start(Question(node, message)) for node in nodes}

    def _rows(self, states: Sequence[str], ahead: Listing | None) -> list[ListedTransaction]:
        patience, failures = self.blocking.patience("the list of transactions"), 0
        while True:
            asked, older = ahead or ({}, None)
            nodes = self.blocking.all_nodes(older)
            asked, ahead = asked | self._ask(states, [each for each in nodes if each not in asked]), None
            listed: list[ListedTransaction] = []
            failure: KafkaSinkError | None = None
            answers = self.blocking.wait(ListTransactionsResponse, list(asked.values()))
            for node, answer in zip(asked, answers, strict=True):
                if isinstance(answer, NetworkError):
                    failure = answer
                elif answer.error_code == error_codes.NONE:
                    listed += answer.transaction_states
                else:
                    failure = broker_error(answer.error_code, f"{node}: the attempt to list transactions was refused")
                    if not may_pass(answer.error_code):
                        raise failure
            if failure is None:
                return listed
            # All are asked again: what one of them coordinates may move to one that has answered.
            patience.wait(failure, pause_ms(failures))
            failures += 1

    @property
    def transaction_version(self) -> int:
        return self.blocking.transaction_version
