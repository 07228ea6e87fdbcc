"""Transactional ids, the prefixes that they begin with, and the record keys of the decision log.

All transactional ids of a query begin with its prefix:

    <prefix>-driver, <prefix>-driver-2, ...          driver ids: the newest producer of the current one decides
    <prefix>-<generation>-<partition>-<attempt>      task ids: one for each attempt of a task

A producer id has 32,766 epochs. When the epochs of the current driver id run out, the last record that is written under
this id names the next driver id (query_transactions.py). A driver id therefore gets a second producer id only if the
brokers have forgotten the first one.

Batches reuse task ids: a broker remembers an id for a week, so a new id for each batch would fill the broker's memory.
Each driver has a new generation, so a late task of an earlier driver has a different id than the tasks of the current
driver. Generations wrap around after GENERATIONS.

Spark restarts the attempt numbers at 0 when it reruns a stage, while an attempt of the first run may still be running
or may have succeeded. An attempt whose id is in use therefore takes another id, which contains the attempt's number
within the Spark application.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from spark_kafka_sink.errors import ConfigurationError

GENERATIONS = 8
MAX_ATTEMPTS = 1_000
"""Greater than the number of attempts of a task (spark.task.maxFailures is 4). Numbers of rerun attempts begin here."""
_RERUN_NUMBERS = 10_000
GENERATED_PREFIX = "pykafka-"
"""The beginning of every prefix that the sink generates."""
DECISION_LOG_TOPIC = "pykafka-decisions"
"""The default topic of the decision log, which all queries share."""
MAX_PREFIX_CHARACTERS = 200
_PREFIX_PATTERN = re.compile(r"[A-Za-z0-9._-]+")
_TASK_ID_PATTERN = re.compile(r"([A-Za-z0-9._-]+)-(\d{1,9})-(\d{1,9})-(\d{1,9})")
MAX_TASK_NUMBER = MAX_DRIVER_NUMBER = 999_999_999
FIRST_DRIVER_NUMBER = 1
_CLAIM_KEY_SUFFIX = b"/claim"
"""Ends the record key of a claim. No prefix contains a slash."""
_DIGEST_CHARACTERS = 16
_LOCATION_PATTERN = re.compile(r"(?:([A-Za-z][\w+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)
"""Scheme, authority and path of a URI; matches every string."""


class TaskAttempt(NamedTuple):
    """An attempt of a task. The generation counts the claims of the prefix, so each driver has a different one."""

    generation: int
    partition: int
    attempt: int


class TaskId(NamedTuple):
    """The parts of a transactional id that belongs to a task attempt."""

    prefix: str
    attempt: TaskAttempt


def compute_rerun_attempt_number(attempt: int, task_attempt_id: int) -> int:
    """Return the number to use in a task id if the id with the attempt's own number is in use.

    No two attempts that run at the same time get the same number. `task_attempt_id`: the attempt's number within the
    Spark application.
    """
    return attempt + MAX_ATTEMPTS * (1 + task_attempt_id % _RERUN_NUMBERS)


def build_driver_id(prefix: str, number: int = FIRST_DRIVER_NUMBER) -> str:
    """Build the transactional id of the driver with this number."""
    return f"{prefix}-driver" if number == FIRST_DRIVER_NUMBER else f"{prefix}-driver-{number}"


def parse_driver_number(prefix: str, transactional_id: str) -> int | None:
    """Return the number of a driver id of this prefix; None for any other transactional id."""
    digits = transactional_id.removeprefix(f"{prefix}-driver-")
    number = int(digits) if re.fullmatch(r"[1-9]\d{0,8}", digits, re.ASCII) else FIRST_DRIVER_NUMBER
    return number if build_driver_id(prefix, number) == transactional_id else None


def build_claim_key(prefix: str) -> bytes:
    """Return the record key of a prefix's claims in the decision log.

    It differs from the key of decisions, the prefix itself, so that compaction never replaces a decision by a claim.
    """
    return prefix.encode() + _CLAIM_KEY_SUFFIX


def split_record_key(key: bytes) -> tuple[bytes, bool]:
    """Split a record key of the decision log into the prefix and whether the record is a claim."""
    return key.removesuffix(_CLAIM_KEY_SUFFIX), key.endswith(_CLAIM_KEY_SUFFIX)


def build_task_id(prefix: str, task: TaskAttempt) -> str:
    """Build the transactional id of a task attempt."""
    return f"{prefix}-{task.generation % GENERATIONS}-{task.partition}-{task.attempt}"


def parse_task_attempt(prefix: str, transactional_id: str) -> TaskAttempt | None:
    """Parse a task id of this prefix. Return None for any other transactional id."""
    task_id = parse_task_id(transactional_id)
    return task_id.attempt if task_id is not None and task_id.prefix == prefix else None


def parse_task_id(transactional_id: str) -> TaskId | None:
    """Parse a task id of any prefix. Return None for any other transactional id."""
    match = _TASK_ID_PATTERN.fullmatch(transactional_id)
    return None if match is None else TaskId(match[1], TaskAttempt(int(match[2]), int(match[3]), int(match[4])))


def derive_prefix(kind: str, identity: str) -> str:
    """Derive a prefix from what identifies a query or job. Equal arguments give equal prefixes."""
    return f"{GENERATED_PREFIX}{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def normalize_checkpoint(location: str) -> str:
    """Normalize the location of a checkpoint and remove credentials: the decision log and errors show it.

    To Spark, /a/b, /a//b, /a/b/ and file:///a/b are the same location, and so are dbfs:/a and dbfs:///a.
    """
    match = _LOCATION_PATTERN.fullmatch(location.strip())
    assert match is not None
    scheme, authority, path = match.groups(default="")
    path = re.sub("/+", "/", path).rstrip("/") or ("" if authority else "/")
    # A user name without a password stays: in abfss: URIs the text before the @ is the container.
    host = re.sub("^[^@:]*:.*@", "", authority)
    return path if scheme.lower() == "file" else f"{scheme and scheme + ':'}{host and '//' + host}{path}"


def find_prefix_error(prefix: str) -> str | None:
    """Return why a prefix is invalid; None if it is valid."""
    if len(prefix) <= MAX_PREFIX_CHARACTERS and _PREFIX_PATTERN.fullmatch(prefix):
        return None
    return f"it must have 1 to {MAX_PREFIX_CHARACTERS} letters, digits, '.', '_' and '-'"


def validate_prefix(prefix: str) -> str:
    """Return the prefix. Raise ConfigurationError if it is invalid."""
    reason = find_prefix_error(prefix)
    if reason is not None:
        raise ConfigurationError(
            f"{prefix[:MAX_PREFIX_CHARACTERS]!r} is not a valid prefix for transactional ids: {reason}."
        )
    return prefix
