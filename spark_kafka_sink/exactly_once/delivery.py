"""Delivery: the settings for exactly-once delivery of one query or job."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC


@dataclass(frozen=True)
class DeliveryOptions:
    """The options of `deliveryGuarantee` = `exactly-once`. None for an option that the user has not set."""

    prefix: str | None = None
    """The beginning of all transactional ids of the query or job."""
    key: str | None = None
    """The idempotency key: a job whose key is committed already writes nothing."""
    topic: str = DECISION_LOG_TOPIC
    """The decision log."""
    replication: int = BROKER_DEFAULT
    """Replication factor of the decision log, if it is created."""
    timeout_ms: int | None = None
    """The transaction timeout of the tasks; None for the longest that brokers grant."""
    checkpoint: str | None = None
    tolerate_mismatch: bool = False
    """Whether a batch that was decided with different rows is skipped with a warning; it is an error otherwise."""


@dataclass(frozen=True)
class Delivery:
    """The options of one query or job, and the names derived from them."""

    client: ClientConfig = field(repr=False)
    prefix: str
    """The user's prefix, or a prefix derived from the checkpoint or the key, or a unique one for this job."""
    options: DeliveryOptions = DeliveryOptions()
    checkpoint: str = ""
    """The normalized location of a stream's checkpoint."""
    scope: str = ""
    """The scope of the key: the topic that the job sets for all rows."""
    is_single_use: bool = False
    """Whether only this job uses the prefix, so that its entry can be deleted when the job has ended."""
    writer_kind: WriterKind | None = None
    """The kind of this writer. A stream cannot take over the prefix of a job, nor a job the prefix of a stream. None
    can take over either."""

    @property
    def has_user_prefix(self) -> bool:
        """Return whether the user has set the prefix."""
        return self.options.prefix is not None
