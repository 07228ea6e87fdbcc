"""The names of transactions.

All transactional ids of a query begin with its prefix:

    <prefix>-driver, <prefix>-driver-2, ...          of the driver: the newest holder of the current one decides
    <prefix>-<generation>-<partition>-<attempt>      of a task

A producer id has 32,766 epochs. When those of the driver's current id come to their end, the last record that is
written under it names the next one (query_transactions.py). So a transactional id of a driver gets another producer id
only if brokers have forgotten it.

Ids of tasks are used again from batch to batch: a broker remembers an id for a week, so an id for each batch would
fill its memory. The generation is another one with each new driver, so that a late task of an earlier driver has an id
which is none of today's. It counts to GENERATIONS and begins again. Spark counts attempts from 0 again when it runs a
stage again, and an attempt of the first run may still be at work, or have ended well: an attempt that finds its id in
use takes another one, in which its own number in the application stands.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from spark_kafka_sink.errors import ConfigurationError

GENERATIONS = 8
ATTEMPTS_MAX = 1_000
"""More than the attempts that Spark makes of a task (spark.task.maxFailures is 4). Names of a second run begin here."""
_SECOND_NAMES = 10_000
OWN_PREFIX = "pykafka-"
"""Prefixes that the sink makes by itself begin with this."""
DECISION_LOG_TOPIC = "pykafka-decisions"
"""Where the decisions of all queries are, unless a query names another topic."""
PREFIX_CHARACTERS_MAX = 200
_PREFIX = re.compile(r"[A-Za-z0-9._-]+")
_TASK_ID = re.compile(r"([A-Za-z0-9._-]+)-(\d{1,9})-(\d{1,9})-(\d{1,9})")
TASK_NUMBER_MAX = DRIVER_NUMBER_MAX = 999_999_999
FIRST_DRIVER = 1
_CLAIM_KEY_END = b"/claim"
"""No prefix has a slash."""
_DIGEST_CHARACTERS = 16
_LOCATION = re.compile(r"(?:([A-Za-z][\w+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)
"""Scheme, authority and path; it matches whatever it is given."""


class TaskName(NamedTuple):
    """Which attempt of which task. The generation counts the claims of the prefix: each driver has one of its own."""

    generation: int
    partition: int
    attempt: int


def second_attempt_name(attempt: int, task_attempt_id: int) -> int:
    """What stands for the attempt's number if an id with that number is in use. No two running attempts have the
    same."""
    return attempt + ATTEMPTS_MAX * (1 + task_attempt_id % _SECOND_NAMES)


def driver_id(prefix: str, number: int = FIRST_DRIVER) -> str:
    return f"{prefix}-driver" if number == FIRST_DRIVER else f"{prefix}-driver-{number}"


def driver_number(prefix: str, transactional_id: str) -> int | None:
    """The number of one of the driver's transactional ids; None for any other id."""
    digits = transactional_id.removeprefix(f"{prefix}-driver-")
    number = int(digits) if re.fullmatch(r"[1-9]\d{0,8}", digits, re.ASCII) else FIRST_DRIVER
    return number if driver_id(prefix, number) == transactional_id else None


def claim_key(prefix: str) -> bytes:
    """Key of a prefix's claims in the decision log. Compaction must not let a claim replace a decision, whose key is
    the prefix itself."""
    return prefix.encode() + _CLAIM_KEY_END


def split_key(key: bytes) -> tuple[bytes, bool]:
    """The prefix that a record of the decision log is about, and whether the record is a claim."""
    return key.removesuffix(_CLAIM_KEY_END), key.endswith(_CLAIM_KEY_END)


def task_id(prefix: str, task: TaskName) -> str:
    return f"{prefix}-{task.generation % GENERATIONS}-{task.partition}-{task.attempt}"


def task_of(prefix: str, transactional_id: str) -> TaskName | None:
    """None for an id that is not one of a task under this prefix."""
    split = split_id(transactional_id)
    return split[1] if split is not None and split[0] == prefix else None


def split_id(transactional_id: str) -> tuple[str, TaskName] | None:
    """The prefix and the task, if it is an id of a task."""
    match = _TASK_ID.fullmatch(transactional_id)
    return None if match is None else (match[1], TaskName(int(match[2]), int(match[3]), int(match[4])))


def prefix_of(kind: str, identity: str) -> str:
    """A prefix made from what makes a query or a job what it is: always the same for the same."""
    return f"{OWN_PREFIX}{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def checkpoint_name(location: str) -> str:
    """A checkpoint's location, written one way and without credentials: the decision log and errors show it.

    Spark takes /a/b, /a//b, /a/b/ and file:///a/b for the same, and so dbfs:/a and dbfs:///a.
    """
    found = _LOCATION.fullmatch(location.strip())
    assert found is not None
    scheme, authority, path = found.groups(default="")
    path = re.sub("/+", "/", path).rstrip("/") or ("" if authority else "/")
    # A name without a password stays: that before the @ of abfss: is the container's.
    host = re.sub("^[^@:]*:.*@", "", authority)
    return path if scheme.lower() == "file" else f"{scheme and scheme + ':'}{host and '//' + host}{path}"


def prefix_fault(prefix: str) -> str | None:
    """What is wrong with a prefix that a user gave."""
    if len(prefix) <= PREFIX_CHARACTERS_MAX and _PREFIX.fullmatch(prefix):
        return None
    return f"it takes 1 to {PREFIX_CHARACTERS_MAX} letters, digits, '.', '_' and '-'"


def checked_prefix(prefix: str) -> str:
    fault = prefix_fault(prefix)
    if fault is not None:
        raise ConfigurationError(f"{prefix[:PREFIX_CHARACTERS_MAX]!r} is no prefix for transactional ids: {fault}.")
    return prefix
