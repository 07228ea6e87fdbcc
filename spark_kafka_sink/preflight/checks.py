"""The targets, time limits and results of preflight checks. A target is the planned write or read that they check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import PreflightError
from spark_kafka_sink.protocol.acl_operation import AclOperation

MAX_LISTED_RESULTS = 10
"""The maximum number of hosts, partitions or failed checks that one message lists."""

# Names of checks, which appear in the output of `pykafka doctor` and which programs may compare.
BOOTSTRAP = "bootstrap servers"
SECURITY = "security"
METADATA = "metadata"


class Outcome(Enum):
    """The result of a check. The values appear in the output of `pykafka doctor --json`."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """The outcome of a check, with a detail and a remedy, which may be empty."""

    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""
    is_connectivity_failure: bool = False
    """Whether the check failed because this machine cannot resolve a host name or connect to an address.

    Another machine may still be able to do so.
    """
    should_driver_log_warning: bool = False
    """Whether Spark's driver should log the result if it is a warning. True for features that options request."""
    sentence: str = ""
    """A sentence for messages that replaces the name and the detail; empty if the detail needs no sentence."""

    @property
    def finding(self) -> str:
        """The result as a sentence, without the remedy."""
        return end_sentence(self.sentence or f"{self.name[0].upper()}{self.name[1:]}: {self.detail}")

    def __str__(self) -> str:
        return f"{self.finding} {end_sentence(self.remedy)}" if self.remedy else self.finding


@dataclass(frozen=True)
class Target:
    """A planned write, or a planned read of topics: the topics and the Kafka features that it uses."""

    topics: Sequence[str] = ()
    topic_operation: AclOperation = AclOperation.WRITE
    """The operation that the user needs permission for, on each of the topics."""
    topic_option_names: Sequence[tuple[str, str]] = ()
    """Topics that options name in addition to the topic of the rows, as pairs of a topic and the name of its option."""
    connect_all_brokers: bool = False
    """Whether to connect to all brokers rather than to the topics' leaders, because each row names its own topic."""
    allow_auto_topic_creation: bool = True
    """Whether brokers may create missing topics when the checks request their metadata, as they do for a producer."""
    new_topic: NewTopic | None = None
    """The topic that the writer creates if it is missing. The checks never create a topic."""
    idempotent: bool = False
    transactional_id: str | None = None
    """A transactional id with the write's prefix. Permissions for it are checked without beginning a transaction."""
    transactional_id_prefix: str = ""
    """The prefix of all of the write's transactional ids. The user needs permissions for all ids with this prefix."""
    exactly_once: bool = False
    """Whether the write will list and describe the cluster's transactions."""
    max_record_bytes: int | None = None
    """The producer's max.request.size, which is compared with each topic's limit."""


@dataclass(frozen=True)
class PreflightTimeouts:
    """Time limits for preflight checks, in milliseconds."""

    response_ms: float = 5_000.0
    """The time to wait for a response."""
    retry_ms: float = 5_000.0
    """The time limit for retries of temporary failures.

    They occur during a broker restart, a leader election or the creation of a topic. Permanent failures, such as
    rejected credentials or missing permissions, are not retried.
    """


INTERACTIVE_TIMEOUTS = PreflightTimeouts(retry_ms=1_000.0)
"""Time limits for commands, because a user is waiting for the result."""


def build_preflight_error(
    checks: Iterable[CheckResult], heading: str = "Cannot write to Kafka; nothing was written."
) -> PreflightError | None:
    """Build an error whose first line describes the first failed check, and whose other lines list the rest.

    Return None if no check failed.
    """
    failed_checks = [check for check in checks if check.outcome is Outcome.FAILED]
    if not failed_checks:
        return None
    first_check, *other_checks = failed_checks
    lines = [f"{heading} {first_check.finding}"]
    if first_check.remedy:
        lines.append(f"What to do: {end_sentence(first_check.remedy)}")
    lines += [f"- {check}" for check in other_checks[: MAX_LISTED_RESULTS - 1]]
    if len(failed_checks) > MAX_LISTED_RESULTS:
        lines.append(f"- and {len(failed_checks) - MAX_LISTED_RESULTS} more.")
    return PreflightError("\n".join(lines))


def format_topic_check_name(topic: str) -> str:
    return format_partition(topic)


def end_sentence(text: str) -> str:
    """Add a period unless the text ends with one."""
    return text.rstrip(". ") + "."
