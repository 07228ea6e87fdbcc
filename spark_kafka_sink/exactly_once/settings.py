"""The exactly-once settings of one query or job.

The most important one is the prefix: the name of the query or job, with which all of its transactional ids begin. The
decision log, the topic that records which batches are committed, stores the state of the query or job under this name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import BROKER_DEFAULT
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.timeout_marks import remove_timeout_mark
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC

_MINUTE_MS = 60_000
CANDIDATE_TIMEOUTS_MS = (
    *(minutes * _MINUTE_MS for minutes in (24 * 60, 12 * 60, 6 * 60, 3 * 60, 60, 30, 15, 10, 5, 2, 1)),
    *(30_000, 15_000, 10_000, 5_000),
)
"""The transaction timeouts that a driver requests in turn, longest first, until the brokers grant one."""
MAX_UNNAMED_JOB_TIMEOUT_MS = 60 * _MINUTE_MS
"""The longest transaction timeout of a job without a name.

If the job's driver dies, no later driver knows of its transactions, and readers wait until the transactions time out.
"""


@dataclass(frozen=True)
class ExactlyOnceOptions:
    """The options for `deliveryGuarantee` = `exactly-once`. An option without a default is None if it is not set."""

    prefix: str | None = None
    """The name of the query or job. All of its transactional ids begin with this name."""
    idempotency_key: str | None = None
    """A key that identifies the job. A job whose key has already been committed writes nothing."""
    log_topic: str = DECISION_LOG_TOPIC
    """The topic of the decision log."""
    log_replication_factor: int = BROKER_DEFAULT
    """The replication factor of the decision log, if the sink creates it."""
    transaction_timeout_ms: int | None = None
    """The tasks' transaction timeout; None for the longest that the brokers grant."""
    checkpoint_location: str | None = None
    """The location of a stream's checkpoint, as the user specified it."""
    tolerate_replay_mismatch: bool = False
    """Whether to log a warning, rather than raise an error, if a batch was already decided with different rows."""


@dataclass(frozen=True)
class ExactlyOnceSettings:
    """The exactly-once options of one query or job, and the values derived from them."""

    client_config: ClientConfig = field(repr=False)
    prefix: str
    """The user's prefix, a prefix derived from the checkpoint or key, or a unique prefix for this job."""
    options: ExactlyOnceOptions = ExactlyOnceOptions()
    checkpoint: str = ""
    """The normalized location of a stream's checkpoint."""
    scope: str = ""
    """The topic that the job sets for all rows. An idempotency key is unique only within this topic."""
    is_single_use: bool = False
    """Whether only this job uses the prefix. The job's entry in the decision log is then deleted when the job ends."""
    writer_kind: WriterKind = field(kw_only=True)
    """Whether this is a stream or a job. A stream cannot take over a job's prefix, nor a job a stream's."""

    @property
    def has_user_prefix(self) -> bool:
        """Return whether the user set the prefix."""
        return self.options.prefix is not None

    @property
    def candidate_timeouts_ms(self) -> Sequence[int]:
        """The transaction timeouts for the driver to request in turn, longest first, until the brokers grant one.

        If the user has set the timeout, it is the only one.
        """
        if self.options.transaction_timeout_ms is not None:
            return (remove_timeout_mark(self.options.transaction_timeout_ms),)
        longest_ms = MAX_UNNAMED_JOB_TIMEOUT_MS if self.is_single_use else CANDIDATE_TIMEOUTS_MS[0]
        return tuple(timeout_ms for timeout_ms in CANDIDATE_TIMEOUTS_MS if timeout_ms <= longest_ms)
