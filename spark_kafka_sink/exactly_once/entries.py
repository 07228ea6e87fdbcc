"""What is decided under a prefix, as one record of the decision log: its key is the prefix, its value JSON.

    OPEN       a driver has begun; nothing is decided yet
    DECIDED    the transactions of a batch are to be committed, and may be so already
    DONE       they are

The newest record of a prefix says everything, so that a compacted topic keeps what is needed. The keys of jobs and the
drivers are the last few of them; everything else is about the last batch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.names import TaskName, task_id
from spark_kafka_sink.producer.sending.open_transaction import PreparedTransaction

FORMAT = 1
KEYS_MAX = 100
DRIVERS_MAX = 20


class EntryState(Enum):
    OPEN = "open"
    DECIDED = "decided"
    DONE = "done"


@dataclass(frozen=True)
class TaskTransaction:
    """A transaction that a task has filled, and left open for the driver to end."""

    task: TaskName
    producer_id: int
    epoch: int
    version: int

    def prepared(self, prefix: str) -> PreparedTransaction:
        return PreparedTransaction(task_id(prefix, self.task), self.producer_id, self.epoch, self.version)


@dataclass(frozen=True)
class Batch:
    """What is committed together: a micro-batch of a query, or a whole job, perhaps with a key for its reruns."""

    query: str | None = None
    number: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        if self.query is not None:
            return f"batch {self.number} of query {self.query}"
        return "the job" if self.key is None else f"the job with the idempotencyKey {self.key!r}"


@dataclass(frozen=True)
class Entry:
    prefix: str
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    transactions: tuple[TaskTransaction, ...] = ()
    generation: int = 0
    """How many drivers there were."""
    drivers: tuple[str, ...] = ()
    """The last ones, the newest at the end."""
    checkpoint: str = ""
    timeout_ms: int = 0
    """Of the tasks' transactions; 0 if that is not known."""
    keys: tuple[str, ...] = ()
    """Of jobs that are committed, the newest at the end."""

    @property
    def last_decided(self) -> Batch | None:
        return None if self.state is EntryState.OPEN else self.batch

    def begun(self, driver: str, checkpoint: str, timeout_ms: int) -> Entry:
        """A new driver has the prefix."""
        return dataclasses.replace(
            self,
            generation=self.generation + 1,
            drivers=(*self.drivers, driver)[-DRIVERS_MAX:],
            checkpoint=checkpoint or self.checkpoint,
            timeout_ms=timeout_ms,
        )

    def decided(self, batch: Batch, transactions: tuple[TaskTransaction, ...]) -> Entry:
        return dataclasses.replace(self, state=EntryState.DECIDED, batch=batch, transactions=transactions)

    def done(self) -> Entry:
        key = self.batch.key
        keys = self.keys if key is None or key in self.keys else (*self.keys, key)[-KEYS_MAX:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keys=keys)

    def has_committed(self, batch: Batch) -> bool:
        """Is this very batch decided? Then its rows must not be written again."""
        if batch.query is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (batch.key in self.keys or self._decided_key == batch.key)

    def has_superseded(self, driver: str) -> bool:
        """A newer driver has the prefix."""
        return driver in self.drivers and driver != self.drivers[-1]

    @property
    def _decided_key(self) -> str | None:
        return self.batch.key if self.state is not EntryState.OPEN else None


def encoded(entry: Entry) -> bytes:
    plain = {
        "format": FORMAT,
        "state": entry.state.value,
        "query": entry.batch.query,
        "batch": entry.batch.number,
        "key": entry.batch.key,
        "transactions": [[*each.task, each.producer_id, each.epoch, each.version] for each in entry.transactions],
        "generation": entry.generation,
        "drivers": entry.drivers,
        "checkpoint": entry.checkpoint,
        "timeoutMs": entry.timeout_ms,
        "keys": entry.keys,
    }
    return json.dumps(plain, separators=(",", ":")).encode()


def decoded(key: bytes, value: bytes) -> Entry:
    """DecodeError for what is no entry: another program writes into the topic, or a newer version of this library."""
    try:
        plain = json.loads(value)
        if plain["format"] != FORMAT:
            raise DecodeError(f"its format is {plain['format']!r}, and this version of the library knows {FORMAT}")
        return _entry(key.decode(), plain)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"it is no record of the decision log: {error!r}") from error


def _entry(prefix: str, plain: Mapping[str, Any]) -> Entry:
    transactions = tuple(
        TaskTransaction(TaskName(int(row[0]), int(row[1]), int(row[2])), int(row[3]), int(row[4]), int(row[5]))
        for row in plain["transactions"]
    )
    return Entry(
        prefix=prefix,
        state=EntryState(plain["state"]),
        batch=Batch(plain["query"], plain["batch"], plain["key"]),
        transactions=transactions,
        generation=int(plain["generation"]),
        drivers=tuple(plain["drivers"]),
        checkpoint=str(plain["checkpoint"]),
        timeout_ms=int(plain["timeoutMs"]),
        keys=tuple(plain["keys"]),
    )
