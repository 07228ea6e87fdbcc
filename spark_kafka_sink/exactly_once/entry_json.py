"""An entry as a record of the decision log. The key is the prefix, or `claim_key` of a claim; the value is JSON.

Everybody who writes exactly once may write to the log, so types and sizes are checked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import (
    DRIVERS_MAX,
    GENERATION_MAX,
    KEYS_MAX,
    Batch,
    Entry,
    EntryState,
    KeyedJob,
    WriterKind,
)
from spark_kafka_sink.exactly_once.transaction_names import (
    DRIVER_NUMBER_MAX,
    FIRST_DRIVER,
    PREFIX_CHARACTERS_MAX,
    TASK_NUMBER_MAX,
    TaskName,
    task_id,
    task_of,
)
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

FORMAT = 3
VALUE_BYTES_MAX = 8 << 20
_TEXT_CHARACTERS_MAX = 4_096
_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1
_FIELDS = frozenset(
    {
        *("format", "state", "query", "batch", "key", "scope", "content", "transactions", "generation", "drivers"),
        *("checkpoint", "timeoutMs", "claimed", "keys", "unproven", "writer", "driverNumber", "follows"),
    }
)


def encoded(entry: Entry, *, follows: int | None = None) -> bytes:
    """`follows`: of a claim, the offset of the newest record that its driver has read; -1 if it found none."""
    plain = {
        "format": FORMAT,
        "state": entry.state.value,
        "query": entry.batch.query,
        "batch": entry.batch.number,
        "key": entry.batch.key,
        "scope": entry.batch.scope,
        "content": _plain_content(entry.content),
        "transactions": [_plain_transaction(entry.prefix, each) for each in entry.transactions],
        "generation": entry.generation,
        "drivers": entry.drivers,
        "checkpoint": entry.checkpoint,
        "timeoutMs": entry.timeout_ms,
        "claimed": None if entry.claimed == NO_PRODUCER_ID else entry.claimed,
        "keys": [_plain_job(job) for job in entry.keys],
        **_plain_mark(entry.unproven),
        **({} if entry.writer is None else {"writer": entry.writer.value}),
        **({} if entry.driver_number == FIRST_DRIVER else {"driverNumber": entry.driver_number}),
        **({} if follows is None else {"follows": follows}),
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
        if plain["format"] != FORMAT:
            raise DecodeError(f"its format is {plain['format']!r:.40}, and this version of the library knows {FORMAT}")
        if not _FIELDS.issuperset(plain):
            raise DecodeError(f"it has fields that this version does not know: {sorted(plain.keys() - _FIELDS)!s:.200}")
        return _entry(_text(key.decode(), PREFIX_CHARACTERS_MAX), plain)
    except (ValueError, KeyError, RecursionError) as error:
        raise DecodeError(f"it is no record of the decision log: {type(error).__name__}: {error!s:.200}") from error


def followed_offset(value: bytes) -> int | None:
    """The offset that a claim follows; None if the claim cannot be read."""
    return _number(value, "follows", None)


def stated_driver_number(value: bytes) -> int | None:
    """The driver's transactional id that a record names; None if the record cannot be read."""
    return _number(value, "driverNumber", FIRST_DRIVER)


def _number(value: bytes, field: str, default: int | None) -> int | None:
    try:
        number = json.loads(value).get(field, default) if len(value) <= VALUE_BYTES_MAX else None
        return None if number is None else int(number)
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return None


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
        generation=_whole(plain["generation"], GENERATION_MAX),
        drivers=tuple(_text(each) for each in _list(plain["drivers"])[-DRIVERS_MAX:]),
        checkpoint=_text(plain["checkpoint"]),
        timeout_ms=_whole(plain["timeoutMs"], _INT_MAX),
        keys=tuple(_job(each) for each in _list(plain["keys"])[-KEYS_MAX:]),
        claimed=_claimed(plain.get("claimed")),
        writer=WriterKind(_text(plain["writer"])) if "writer" in plain else None,
        driver_number=_whole(plain.get("driverNumber", FIRST_DRIVER), DRIVER_NUMBER_MAX),
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


def _job(plain: object) -> KeyedJob:
    fields = _object(plain)
    scope, content = _optional(fields["scope"], _text), _content(fields["content"])
    return KeyedJob(_text(fields["key"]), scope, content, _mark(fields))


def _plain_job(job: KeyedJob) -> Mapping[str, object]:
    return {"key": job.key, "scope": job.scope, "content": _plain_content(job.content), **_plain_mark(job.unproven)}


def _plain_mark(unproven: bool) -> Mapping[str, bool]:
    return {"unproven": True} if unproven else {}


def _mark(plain: Mapping[str, Any]) -> bool:
    return _truth(plain.get("unproven", False))


def _plain_content(content: Content | None) -> Mapping[str, object] | None:
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
