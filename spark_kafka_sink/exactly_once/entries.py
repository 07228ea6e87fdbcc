"""What is decided under a prefix, as one record of the decision log: its key is the prefix, its value JSON.

    OPEN       a driver has begun; nothing is decided yet
    DECIDED    the transactions of a batch are to be committed, and may be so already
    DONE       they are

The newest record of a prefix says everything, so that a compacted topic keeps what is needed. The keys of jobs and the
drivers are the last few of them; everything else is about the last batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.names import PREFIX_CHARACTERS_MAX, TASK_NUMBER_MAX, TaskName, task_id, task_of
from spark_kafka_sink.producer.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity

FORMAT = 2
_READ_TOO = 1
"""The format before contents were noted. Its batches are known by number or key alone."""
KEYS_MAX = 100
DRIVERS_MAX = 100
"""An older driver that stood still is known as one until it has had this number of successors."""
VALUE_BYTES_MAX = 8 << 20
_DIGEST_MARK, _DIGEST_CHARACTERS = "#", 8
_BEGINNING_MARK = "+"
_TEXT_CHARACTERS_MAX = 4_096
_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1


class EntryState(Enum):
    OPEN = "open"
    DECIDED = "decided"
    DONE = "done"


@dataclass(frozen=True)
class Batch:
    """What is committed together: a micro-batch of a query, or a whole job, perhaps with a key for its reruns."""

    query: str | None = None
    number: int | None = None
    key: str | None = None
    scope: str = ""
    """The topic that the job names for all rows: a key identifies a job within it. Empty where rows name their
    topics."""

    def __str__(self) -> str:
        if self.query is not None:
            return f"batch {self.number} of query {self.query}"
        return "the job" if self.key is None else f"the job with the idempotencyKey {self.key!r}"


@dataclass(frozen=True)
class KeyedJob:
    """A job that is committed. `scope` and `content` are None if an earlier version has noted it."""

    key: str
    scope: str | None = None
    content: Content | None = None
    unproven: bool = False

    def is_of(self, batch: Batch) -> bool:
        return self.key == batch.key and self.scope in (None, batch.scope)


@dataclass(frozen=True)
class Entry:
    prefix: str
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    content: Content | None = None
    """Of the batch; None if an earlier version has decided it."""
    unproven: bool = False
    """It is not known whether a driver of the prefix has decided the batch: see `as_unproven`."""
    transactions: tuple[TransactionIdentity, ...] = ()
    """Of tasks, which have filled them and left them open for the driver to end."""
    generation: int = 0
    """How many claims there were: of drivers, of aborts, and of people."""
    drivers: tuple[str, ...] = ()
    """The last ones, the newest at the end; digests of the names of the others."""
    checkpoint: str = ""
    timeout_ms: int = 0
    """Of the tasks' transactions; 0 if that is not known."""
    keys: tuple[KeyedJob, ...] = ()
    """Jobs that are committed, the newest at the end."""
    claimed: ProducerIdAndEpoch = NO_PRODUCER_ID
    """Producer id and epoch under which the newest driver took over."""
    written_by: ProducerIdAndEpoch = field(default=NO_PRODUCER_ID, compare=False)
    """Producer id and epoch in the header of the batch that the entry was read from."""

    @property
    def driver(self) -> str:
        """The newest driver's name; empty if there was none."""
        return self.drivers[-1] if self.drivers else ""

    @property
    def last_decided(self) -> Batch | None:
        return None if self.state is EntryState.OPEN else self.batch

    def begun(
        self, driver: str, checkpoint: str, timeout_ms: int, claimed: ProducerIdAndEpoch = NO_PRODUCER_ID
    ) -> Entry:
        """A new driver has the prefix."""
        others = [each for each in map(_digest, self.drivers) if each != _digest(driver)]
        return dataclasses.replace(
            self,
            generation=self.generation % _INT_MAX + 1,  # a stranger may have written the greatest number
            drivers=(*others, driver)[-DRIVERS_MAX:],
            checkpoint=checkpoint or self.checkpoint,
            timeout_ms=timeout_ms,
            claimed=claimed,
        )

    def claimed_again(self, claimed: ProducerIdAndEpoch) -> Entry:
        """Its driver has the prefix still, under another epoch."""
        return dataclasses.replace(self, claimed=claimed)

    def is_of_one_driver_with(self, other: Entry) -> bool:
        """Do both say the same, but for the epoch under which their driver has claimed the prefix?"""
        return self == other.claimed_again(self.claimed)

    def decided(self, batch: Batch, content: Content, transactions: tuple[TransactionIdentity, ...]) -> Entry:
        return dataclasses.replace(
            self,
            state=EntryState.DECIDED,
            batch=batch,
            content=content,
            unproven=False,
            transactions=transactions,
        )

    def done(self) -> Entry:
        keys = self.keys
        if self.batch.key is not None and self._keyed(self.batch) is None:
            keys = (*keys, KeyedJob(self.batch.key, self.batch.scope, self.content, self.unproven))[-KEYS_MAX:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keys=keys)

    def as_unproven(self) -> Entry:
        """As it was read from a record of a producer id that no transactional id has which this user may see. What it
        says may stop a batch, but no batch is passed over because of it, also when a driver has written it again in its
        own name."""
        keys = tuple(dataclasses.replace(job, unproven=True) for job in self.keys)
        return dataclasses.replace(self, unproven=True, keys=keys)

    def given_up(self) -> Entry:
        """Done, as a person says who has looked at the batch."""
        return dataclasses.replace(self, unproven=False).done()

    def has_committed(self, batch: Batch) -> bool:
        """Is a batch of this name decided? Then its rows must not be written again."""
        if batch.query is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (self._keyed(batch) is not None or self._is_decided_key(batch))

    def content_of(self, batch: Batch) -> Content | None:
        """What was committed as this batch. None if that was not noted."""
        decision = self._decision_of(batch)
        return None if decision is None else decision.content

    def is_proven(self, batch: Batch) -> bool:
        """Is it known that a driver of the prefix has decided this batch?"""
        decision = self._decision_of(batch)
        return decision is not None and not decision.unproven

    def has_superseded(self, driver: str) -> bool:
        """A newer driver has the prefix, of another start."""
        return _digest(driver) in map(_digest, self.drivers) and not self.is_of_start(driver)

    def is_of_start(self, driver: str) -> bool:
        """Is the newest driver of the same start of the query as this one?"""
        return bool(self.driver) and _start(self.driver) == _start(driver)

    def _decision_of(self, batch: Batch) -> Entry | KeyedJob | None:
        """What says how this batch was decided."""
        return self if batch.query is not None or self._is_decided_key(batch) else self._keyed(batch)

    def _keyed(self, batch: Batch) -> KeyedJob | None:
        return next((job for job in self.keys if job.is_of(batch)), None)

    def _is_decided_key(self, batch: Batch) -> bool:
        return self.state is not EntryState.OPEN and (batch.key, batch.scope) == (self.batch.key, self.batch.scope)


def beginning_of(start: str, number: str) -> str:
    """The name of a driver that is of one batch alone. Those of the same start succeed each other."""
    return f"{start}{_BEGINNING_MARK}{number}"


def _start(driver: str) -> str:
    return driver.partition(_BEGINNING_MARK)[0]


def _digest(driver: str) -> str:
    """What is kept of the name of a driver that has a successor: a digest of its start's name. A digest stays as it
    is."""
    if driver.startswith(_DIGEST_MARK):
        return driver
    return _DIGEST_MARK + hashlib.sha256(_start(driver).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def encoded(entry: Entry) -> bytes:
    plain = {
        "format": FORMAT,
        "state": entry.state.value,
        "query": entry.batch.query,
        "batch": entry.batch.number,
        "key": entry.batch.key,
        "scope": entry.batch.scope,
        "content": _plain(entry.content),
        "transactions": [_plain_transaction(entry.prefix, each) for each in entry.transactions],
        "generation": entry.generation,
        "drivers": entry.drivers,
        "checkpoint": entry.checkpoint,
        "timeoutMs": entry.timeout_ms,
        "claimed": None if entry.claimed == NO_PRODUCER_ID else entry.claimed,
        "keys": [_plain_job(job) for job in entry.keys],
        **_plain_mark(entry.unproven),
    }
    return json.dumps(plain, separators=(",", ":")).encode()


def decoded(key: bytes, value: bytes) -> Entry:
    """DecodeError for what is no entry: another program has written it, or a newer version of this library."""
    if len(value) > VALUE_BYTES_MAX:
        raise DecodeError(f"it has {len(value)} bytes, and an entry has at most {VALUE_BYTES_MAX}")
    try:
        plain = json.loads(value)
        if not isinstance(plain, dict):
            raise DecodeError("it is no record of the decision log: its JSON is no object")
        if plain["format"] not in (FORMAT, _READ_TOO):
            raise DecodeError(f"its format is {plain['format']!r:.40}, and this version of the library knows {FORMAT}")
        return _entry(_text(key.decode(), PREFIX_CHARACTERS_MAX), plain)
    except (ValueError, KeyError, RecursionError) as error:
        raise DecodeError(f"it is no record of the decision log: {type(error).__name__}: {error!s:.200}") from error


def _entry(prefix: str, plain: Mapping[str, Any]) -> Entry:
    return Entry(
        prefix=prefix,
        state=EntryState(_text(plain["state"])),
        batch=Batch(
            _optional(plain["query"], _text),
            _optional(plain["batch"], _whole),
            _optional(plain["key"], _text),
            _text(plain.get("scope", "")),
        ),
        content=_content(plain.get("content")),
        unproven=_mark(plain),
        transactions=tuple(_transaction(prefix, row) for row in _list(plain["transactions"])),
        generation=_whole(plain["generation"], _INT_MAX),
        drivers=tuple(_text(each) for each in _list(plain["drivers"])[-DRIVERS_MAX:]),
        checkpoint=_text(plain["checkpoint"]),
        timeout_ms=_whole(plain["timeoutMs"], _INT_MAX),
        keys=tuple(_keyed_job(each) for each in _list(plain["keys"])[-KEYS_MAX:]),
        claimed=_claimed(plain.get("claimed")),
    )


def _plain_transaction(prefix: str, transaction: TransactionIdentity) -> Sequence[int]:
    task = task_of(prefix, transaction.transactional_id)
    assert task is not None
    return (*task, transaction.producer_id, transaction.epoch, transaction.version)


def _transaction(prefix: str, row: object) -> TransactionIdentity:
    name, numbers = _list(row, 6)[:3], _list(row, 6)[3:]
    task = TaskName(*(_whole(each, TASK_NUMBER_MAX) for each in name))
    return TransactionIdentity(task_id(prefix, task), *(_whole(each) for each in numbers))


def _claimed(plain: object) -> ProducerIdAndEpoch:
    if plain is None:
        return NO_PRODUCER_ID
    producer_id, epoch = _list(plain, 2)
    return ProducerIdAndEpoch(_whole(producer_id), _whole(epoch, _INT_MAX))


def _keyed_job(plain: object) -> KeyedJob:
    if isinstance(plain, str):
        return KeyedJob(_text(plain))
    fields = _object(plain)
    scope, content = _optional(fields["scope"], _text), _content(fields["content"])
    return KeyedJob(_text(fields["key"]), scope, content, _mark(fields))


def _plain_job(job: KeyedJob) -> Mapping[str, object]:
    return {"key": job.key, "scope": job.scope, "content": _plain(job.content), **_plain_mark(job.unproven)}


def _plain_mark(unproven: bool) -> Mapping[str, bool]:
    return {"unproven": True} if unproven else {}


def _mark(plain: Mapping[str, Any]) -> bool:
    return _truth(plain.get("unproven", False))


def _plain(content: Content | None) -> Mapping[str, object] | None:
    return None if content is None else dataclasses.asdict(content)


def _content(plain: object) -> Content | None:
    if plain is None:
        return None
    fields = _object(plain)
    topics = tuple((_text(name), _whole(rows)) for name, rows in (_list(each, 2) for each in _list(fields["topics"])))
    return Content(_whole(fields["rows"]), _whole(fields["payload_bytes"]), topics, _text(fields["digest"]))


# --- the types of JSON, checked: a ValueError names what is there instead


def _text(value: object, characters_max: int = _TEXT_CHARACTERS_MAX) -> str:
    if not isinstance(value, str) or len(value) > characters_max:
        raise ValueError(f"a text of at most {characters_max} characters is wanted, not {value!r:.40}")
    return value


def _whole(value: object, number_max: int = _LONG_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= number_max:
        raise ValueError(f"a whole number from 0 to {number_max} is wanted, not {value!r:.40}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"true or false is wanted, not {value!r:.40}")
    return value


def _list(value: object, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"a list{'' if length is None else f' of {length}'} is wanted, not {value!r:.40}")
    return value


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object is wanted, not {value!r:.40}")
    return value


def _optional(value: object, check: Any) -> Any:
    return None if value is None else check(value)
