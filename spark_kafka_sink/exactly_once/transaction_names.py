"""Transactional ids, their prefixes, and the record keys of the decision log: builders, parsers and validation.

A query or job has a name, with which all of its transactional ids begin, so the name is called the prefix:

    <prefix>-driver, <prefix>-driver-2, ...          driver ids. Under the current one, the driver decides which batches
                                                     are committed
    <prefix>-<generation>-<partition>-<attempt>      task ids, one for each attempt of a task

There may be several driver ids, because a producer id has only 32,766 epochs. Shortly before they are used up, the
driver continues under the next driver id, which is named by the last record under the old one (query_transactions.py).
Otherwise, brokers would assign a new producer id to the same driver id, and nothing would prove that the records of the
old producer id are the driver's.

Batches reuse task ids. Brokers remember an id for a week, so a new id for each batch would fill their memory. Each time
a driver takes over, the generation increases, so that a late task of an earlier driver does not share an id with a task
of the current driver. Generations wrap around after GENERATION_COUNT.

When Spark reruns a stage, it restarts the attempt numbers at 0, although an attempt of the first run may still be
running or may have succeeded. If an attempt's id is in use, the attempt therefore chooses another id, which contains a
number derived from Spark's taskAttemptId.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from spark_kafka_sink.errors import ConfigurationError

GENERATION_COUNT = 8
"""The number of different generations in task ids. After this many claims, a prefix uses the same ids again."""
MAX_ATTEMPTS = 1_000
"""Greater than any attempt number of Spark (spark.task.maxFailures is 4 by default). Rerun numbers start here."""
_RERUN_NUMBER_COUNT = 10_000
"""The number of rerun numbers for each of Spark's attempt numbers."""
GENERATED_PREFIX = "pykafka-"
"""The beginning of every prefix that the sink generates."""
DECISION_LOG_TOPIC = "pykafka-decisions"
"""The default topic of the decision log. All queries share it."""
MAX_PREFIX_CHARACTERS = 200
"""The greatest length of a prefix. It is part of the record format: readers reject longer ones."""
_PREFIX_PATTERN = re.compile(r"[A-Za-z0-9._-]+")
_TASK_ID_PATTERN = re.compile(r"([A-Za-z0-9._-]+)-(\d{1,9})-(\d{1,9})-(\d{1,9})")
MAX_TASK_NUMBER = MAX_DRIVER_NUMBER = 999_999_999
"""The greatest numbers in transactional ids, because `_TASK_ID_PATTERN` accepts nine digits."""
FIRST_DRIVER_NUMBER = 1
_CLAIM_KEY_SUFFIX = b"/claim"
"""The suffix of a claim's record key. It cannot end a prefix, because prefixes contain no slash."""
_DIGEST_CHARACTERS = 16  # If this changes, queries with a generated prefix no longer find their entries.
_LOCATION_PATTERN = re.compile(r"(?:([A-Za-z][\w+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)
"""The scheme, authority and path of a URI. Matches every string."""


class TaskAttempt(NamedTuple):
    """One execution of a Spark task."""

    generation: int
    """The number of claims of the prefix so far, or its remainder if parsed from a task id. Differs between drivers."""
    partition: int
    """The number of Spark's partition, which is also the number of the task."""
    attempt: int
    """The number of the attempt, starting at 0 for each task."""


class TaskId(NamedTuple):
    """The parts of a task attempt's transactional id."""

    prefix: str
    task_attempt: TaskAttempt


class RecordKey(NamedTuple):
    """The parts of a record key of the decision log."""

    prefix: bytes
    """The encoded prefix of the query or job."""
    is_claim: bool
    """Whether the record is a claim, which names the query's current driver. Otherwise, it has the key of decisions."""


def compute_rerun_attempt_number(attempt: int, spark_attempt_id: int) -> int:
    """Return the number to use in a task's transactional id if the id with the attempt's own number is in use.

    Attempts that run at the same time get different numbers. For example, taskAttemptId 57 turns attempt 0 into number
    58000.

    `attempt`: the attempt's number within its task.
    `spark_attempt_id`: Spark's taskAttemptId, which is unique within the Spark application.
    """
    return attempt + MAX_ATTEMPTS * (1 + spark_attempt_id % _RERUN_NUMBER_COUNT)


def build_driver_id(prefix: str, number: int = FIRST_DRIVER_NUMBER) -> str:
    """Return the transactional id under which a query's driver decides which batches are committed.

    `number`: 1 for the first such id of the prefix. When the epochs of an id are used up, the next number follows.
    """
    return f"{prefix}-driver" if number == FIRST_DRIVER_NUMBER else f"{prefix}-driver-{number}"


def parse_driver_number(prefix: str, transactional_id: str) -> int | None:
    """Return the number of a driver id of this prefix, such as 2 for `<prefix>-driver-2`.

    Return None for any other transactional id.
    """
    digits = transactional_id.removeprefix(f"{prefix}-driver-")
    number = int(digits) if re.fullmatch(r"[1-9]\d{0,8}", digits, re.ASCII) else FIRST_DRIVER_NUMBER
    # Compare with the rebuilt id, to reject ids of tasks, and "-driver-1": the first driver id contains no number.
    return number if build_driver_id(prefix, number) == transactional_id else None


def build_claim_key(prefix: str) -> bytes:
    """Return the record key of claims, with which drivers take over the prefix.

    The key of decisions is the prefix itself. Claims have a different key, so that compaction never removes a decision
    in favor of a claim.
    """
    return prefix.encode() + _CLAIM_KEY_SUFFIX


def parse_record_key(key: bytes) -> RecordKey:
    """Split a record key of the decision log into its parts."""
    return RecordKey(key.removesuffix(_CLAIM_KEY_SUFFIX), is_claim=key.endswith(_CLAIM_KEY_SUFFIX))


def build_task_id(prefix: str, task_attempt: TaskAttempt) -> str:
    """Return the transactional id of a task attempt. It contains the generation modulo GENERATION_COUNT."""
    generation = task_attempt.generation % GENERATION_COUNT
    return f"{prefix}-{generation}-{task_attempt.partition}-{task_attempt.attempt}"


def parse_task_attempt(prefix: str, transactional_id: str) -> TaskAttempt | None:
    """Parse the transactional id of a task of this prefix. Return None for any other id."""
    task_id = parse_task_id(transactional_id)
    return task_id.task_attempt if task_id is not None and task_id.prefix == prefix else None


def parse_task_id(transactional_id: str) -> TaskId | None:
    """Parse the transactional id of a task of any prefix. Return None for any other id."""
    match = _TASK_ID_PATTERN.fullmatch(transactional_id)
    return None if match is None else TaskId(match[1], TaskAttempt(int(match[2]), int(match[3]), int(match[4])))


def derive_prefix(kind: str, identity: str) -> str:
    """Return a prefix for a query or job for which the user has set none. Equal arguments give equal prefixes.

    `kind`: a word that the prefix contains, such as `stream`. It shows what `identity` is.
    `identity`: the text that identifies the query or job, such as the location of its checkpoint.
    """
    return f"{GENERATED_PREFIX}{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def normalize_checkpoint(location: str) -> str:
    """Normalize a checkpoint's location, and remove credentials, because the decision log and error messages show it.

    Spark treats /a/b, /a//b, /a/b/ and file:///a/b as the same location, and likewise dbfs:/a and dbfs:///a.
    """
    match = _LOCATION_PATTERN.fullmatch(location.strip())
    assert match is not None
    scheme, authority, path = match.groups(default="")
    path = re.sub("/+", "/", path).rstrip("/") or ("" if authority else "/")
    # Keep a user name without a password: in abfss: URIs, the text before the @ is the container.
    host = re.sub("^[^@:]*:.*@", "", authority)
    return path if scheme.lower() == "file" else f"{scheme and scheme + ':'}{host and '//' + host}{path}"


def find_prefix_error(prefix: str) -> str | None:
    """Return the reason why a prefix is invalid, or None if it is valid."""
    if len(prefix) <= MAX_PREFIX_CHARACTERS and _PREFIX_PATTERN.fullmatch(prefix):
        return None
    return f"it must have 1 to {MAX_PREFIX_CHARACTERS} letters, digits, '.', '_' and '-'"


def validate_prefix(prefix: str) -> str:
    """Return the prefix if it is valid. Otherwise, raise ConfigurationError."""
    reason = find_prefix_error(prefix)
    if reason is not None:
        raise ConfigurationError(
            f"{prefix[:MAX_PREFIX_CHARACTERS]!r} is not a valid prefix for transactional ids: {reason}."
        )
    return prefix
