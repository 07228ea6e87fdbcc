"""TransactionRequest: what each request about transactions says of itself (the requests are in requests.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.verdicts import OF_A_COORDINATOR, Judgement, Table, Verdict
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import broker_error, error_code
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange

GROUP, TRANSACTION = 0, 1

AnswerT = TypeVar("AnswerT", bound=Message)


class CoordinatorKey(NamedTuple):
    """What a broker coordinates: a group or a transactional id."""

    key_type: int
    key: str


class Follower(Protocol):
    """What a request, when it has been carried out, changes for the producer that asked."""

    def coordinator_found(self, key: CoordinatorKey, node: Node) -> None: ...
    def initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None: ...
    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None: ...
    def group_added(self) -> None: ...
    def offsets_written(self, partitions: Iterable[TopicPartition]) -> None: ...
    def ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None: ...


class TransactionRequest(ABC, Generic[AnswerT]):
    """One request about transactions, and the meaning of its answer."""

    api_key: ClassVar[ApiKey]
    action: ClassVar[str]
    """What is attempted, in words."""
    verdicts: ClassVar[Table] = OF_A_COORDINATOR
    unlisted: ClassVar[Verdict] = Verdict.FATAL
    """Of codes that are neither listed nor retriable."""
    joins: ClassVar[bool] = False
    """It adds to the transaction. If the answer is lost, brokers may know of the transaction."""
    harms_late: ClassVar[bool] = False
    """Carried out late, it would change the next transaction of the same epoch."""
    ends: ClassVar[bool] = False
    """It ends the transaction; nothing may join it afterwards."""
    begins_version_2: ClassVar[bool] = False
    """Brokers begin a transaction of version 2 with this request, as with a batch. In version 1 other requests begin
    it."""
    any_broker_answers: ClassVar[bool] = False
    """It is sent to any broker, and its answer says nothing of whether a coordinator can be reached."""
    answer_type: type[AnswerT]

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorKey:
        """Whose coordinator is asked."""

    @property
    def ids(self) -> Sequence[str]:
        """What is asked about."""
        return (self.coordinator.key,)

    @property
    def versions(self) -> VersionRange | None:
        """In which versions it may be sent; None: in any."""
        return None

    @abstractmethod
    def message(self, version: int) -> Message: ...

    @abstractmethod
    def judged(self, answer: AnswerT) -> Judgement:
        """What the answer says of the request as a whole."""

    def judged_by_id(self, answer: AnswerT) -> Mapping[str, Judgement]:
        """What the answer says of each id that was asked about."""
        return {self.coordinator.key: self.judged(answer)}

    def about(self, names: Sequence[str]) -> TransactionRequest[AnswerT]:
        """The request about some of its ids. Most are about one id only."""
        return self

    def progress(self, answer: AnswerT, follower: Follower) -> None:
        """Note what parts were carried out, even if the request must be sent again for others."""

    def follow(self, answer: AnswerT, follower: Follower) -> None:
        """It was carried out."""

    def judgement(self, code: int, where: str = "") -> Judgement:
        verdict = self.verdicts.get(code)
        if verdict is None:
            verdict = Verdict.RETRY if error_code(code).retriable else self.unlisted
        return Judgement(verdict, code, where)

    @staticmethod
    def may_be_stored(judgement: Judgement) -> bool:
        """Is it possible that a coordinator has the request in its log nevertheless? So it is when replicas were too
        slow for an answer."""
        return judgement.verdict is Verdict.LOOK_UP or judgement.code == codes.UNKNOWN_SERVER_ERROR

    def refusal(self, transactional_id: str, judgement: Judgement) -> BrokerError:
        """The error of a refusal. Brokers before 2.8 have another name for a producer that is fenced."""
        code = codes.PRODUCER_FENCED if judgement.verdict is Verdict.FENCED else judgement.code
        place = f" ({judgement.where})" if judgement.where else ""
        attempt = f"transactional id {transactional_id}: the attempt to {self.action}{place}"
        return broker_error(code, f"{attempt} was refused")
