"""Delivery: how the rows of one query or job are written exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC


@dataclass(frozen=True)
class DeliveryOptions:
    """The options of `deliveryGuarantee` = `exactly-once`. None where the user has not set one."""

    prefix: str | None = None
    """Begins all transactional ids of the query or job."""
    key: str | None = None
    """Names a job: a job whose key is committed already writes nothing."""
    topic: str = DECISION_LOG_TOPIC
    """The decision log."""
    replication: int = BROKER_DEFAULT
    timeout_ms: int | None = None
    """The timeout of the tasks' transactions; None for the longest that the brokers allow."""
    checkpoint: str | None = None
    tolerates_mismatch: bool = False
    """Whether a batch that was decided with other rows is skipped with a warning; it is an error otherwise."""


@dataclass(frozen=True)
class Delivery:
    """The options of one query or job, and the names derived from them."""

    client: ClientConfig = field(repr=False)
    prefix: str
    """The user's prefix, or one derived from the checkpoint or the key, or one for this job only."""
    options: DeliveryOptions = DeliveryOptions()
    checkpoint: str = ""
    """The name of a stream's checkpoint, the same however its path is written."""
    scope: str = ""
    """The scope of the key: the topic that the job sets for all rows."""
    is_forgotten: bool = False
    """The prefix is of this job alone, and nothing needs to be known of it when the job is over."""
    writer: WriterKind | None = None
    """A stream must not take over a job's prefix, nor a job a stream's; None takes over both."""

    @property
    def is_given(self) -> bool:
        """Return whether the user chose the prefix."""
        return self.options.prefix is not None
