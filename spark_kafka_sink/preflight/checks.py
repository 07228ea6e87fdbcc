"""What the checks are about, and what they have found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import PreflightError

FAULTS_SHOWN_MAX = 10

BOOTSTRAP = "bootstrap servers"
SECURITY = "security"
METADATA = "metadata"


class Outcome(Enum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was found and, unless all is well, what to do."""

    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""
    concerns_address: bool = False
    """A name or an address that another machine may reach although this one does not."""
    logged_by_driver: bool = False
    """The driver logs the check if it is a warning: it is about what the user's options ask for."""

    def __str__(self) -> str:
        return " ".join(sentence(part) for part in (f"{self.name}: {self.detail}", self.remedy) if part)


@dataclass(frozen=True)
class Target:
    """What is going to be written, and with which rights."""

    topics: Sequence[str] = ()
    topic_options: Sequence[tuple[str, str]] = ()
    """(topic, option that names it) for topics that are not the target of the rows."""
    every_broker: bool = False
    """Connect to each broker, not only to leaders: the rows name topics, too, which are not known yet."""
    create_topics: bool = True
    """Let brokers create missing topics, as they do for a producer."""
    new_topic: NewTopic | None = None
    """One of the topics, which the writer creates if it is missing. The checks create none."""
    idempotent: bool = False
    transactional_id: str | None = None
    """An id with which transactions will be made; none is begun or ended by the checks."""
    transactional_id_prefix: str = ""
    """Other ids with this beginning will be used as well, so the rights must be for all of them."""
    exactly_once: bool = False
    """Brokers will be asked which transactions there are, and whose."""
    record_bytes_max: int | None = None
    """max.request.size of the producer; compared with what the topic takes."""


@dataclass(frozen=True)
class PreflightTimeouts:
    """The time limits of preflight checks, in milliseconds."""

    response_ms: float = 5_000.0
    """How long to wait for a response."""
    retry_ms: float = 5_000.0
    """How long to retry temporary failures: a broker restarts, a leader is elected, a topic is being created. Permanent
    failures, such as rejected credentials or a missing permission, are not retried."""


INTERACTIVE_TIMEOUTS = PreflightTimeouts(retry_ms=1_000.0)
"""The time limits of commands, where a user waits for the result."""


def failure(
    checks: Iterable[Check], heading: str = "Kafka cannot be written to, and nothing was written"
) -> PreflightError | None:
    """One error that names every check that has failed, the first of them in its first line; None if none has."""
    failed = [check for check in checks if check.outcome is Outcome.FAILED]
    if not failed:
        return None
    first, *others = failed
    lines = [f"{heading}: {sentence(f'{first.name}: {first.detail}')}"]
    if first.remedy:
        lines.append(f"What to do: {sentence(first.remedy)}")
    lines += [f"- {check}" for check in others[: FAULTS_SHOWN_MAX - 1]]
    if len(failed) > FAULTS_SHOWN_MAX:
        lines.append(f"- and {len(failed) - FAULTS_SHOWN_MAX} more checks.")
    return PreflightError("\n".join(lines))


def topic_name(topic: str) -> str:
    """The name of the check of a topic."""
    return format_partition(topic)


def sentence(words: str) -> str:
    return words.rstrip(". ") + "."


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
