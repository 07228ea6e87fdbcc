"""The JSON format of entries: the values of the records in the decision log.

An entry is the state of one query or job (entries.py). Its record's key is the name of the query or job, called the
prefix. The exception is a claim, the record with which a driver becomes the query's current one: its key is
`build_claim_key(prefix)`.

Other versions of the library read the same log, so a change of the format requires a new FORMAT_VERSION. Everyone who
uses exactly-once delivery may write to the log, so decoding checks all types and sizes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import (
    MAX_DRIVER_NAMES,
    MAX_GENERATION,
    MAX_KEYED_JOBS,
    Batch,
    Entry,
    EntryState,
    KeyedJob,
    WriterKind,
)
from spark_kafka_sink.exactly_once.transaction_names import (
    FIRST_DRIVER_NUMBER,
    MAX_DRIVER_NUMBER,
    MAX_PREFIX_CHARACTERS,
    MAX_TASK_NUMBER,
    TaskAttempt,
    build_task_id,
    parse_task_attempt,
)
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

ValueT = TypeVar("ValueT")

FORMAT_VERSION = 3
"""The version of the format. Records of any other version are rejected."""
MAX_VALUE_BYTES = 8 << 20
"""The size of the largest value that is decoded. It limits how much memory somebody else's record can use."""
_MAX_STRING_CHARACTERS = 4_096
_MAX_LONG = 2**63 - 1
_MAX_INT = 2**31 - 1
_FIELDS = frozenset(
    {
        *("format", "state", "query", "batch", "key", "scope", "content", "transactions", "generation", "drivers"),
        *("checkpoint", "timeoutMs", "claimed", "keys", "unproven", "writer", "driverNumber", "follows"),
    }
)
"""The names of all fields. Records with other fields are rejected, because a newer version may have written them."""


def encode_entry(entry: Entry, *, followed_offset: int | None = None) -> bytes:
    """Encode an entry as JSON.

    `followed_offset`: for a claim, the offset of the newest record under the prefix that the driver has read, or -1 if
    it has found none; None for any other record.
    """
    fields = {
        "format": FORMAT_VERSION,
        "state": entry.state.value,
        "query": entry.batch.query_id,
        "batch": entry.batch.batch_id,
        "key": entry.batch.key,
        "scope": entry.batch.scope,
        "content": None if entry.summary is None else dataclasses.asdict(entry.summary),
        "transactions": [_transaction_to_json(entry.prefix, transaction) for transaction in entry.transactions],
        "generation": entry.generation,
        "drivers": entry.driver_names,
        "checkpoint": entry.checkpoint,
        "timeoutMs": entry.timeout_ms,
        "claimed": None if entry.claim_identity == NO_PRODUCER_ID else entry.claim_identity,
        "keys": [_keyed_job_to_json(job) for job in entry.keyed_jobs],
        **_unproven_to_json(entry.is_unproven),
        **({} if entry.writer_kind is None else {"writer": entry.writer_kind.value}),
        **({} if entry.driver_number == FIRST_DRIVER_NUMBER else {"driverNumber": entry.driver_number}),
        **({} if followed_offset is None else {"follows": followed_offset}),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_entry(encoded_prefix: bytes, value: bytes) -> Entry:
    """Decode an entry. Raise DecodeError if the value is invalid, or if a newer version of the library has written it.

    The error's message does not contain the record's position, so the caller must add it.

    `encoded_prefix`: the prefix to which the record belongs. It is not always the record's key: claims have another.
    """
    if len(value) > MAX_VALUE_BYTES:
        raise DecodeError(f"its value is {len(value)} bytes long, but an entry has at most {MAX_VALUE_BYTES} bytes")
    try:
        fields = json.loads(value)
        if not isinstance(fields, dict):
            raise DecodeError("its value is not a decision log entry: the JSON is not an object")
        if fields["format"] != FORMAT_VERSION:
            raise DecodeError(
                f"its format version is {fields['format']!r:.40}, but this version of the library supports "
                f"{FORMAT_VERSION}"
            )
        if not _FIELDS.issuperset(fields):
            unknown_fields = sorted(fields.keys() - _FIELDS)
            raise DecodeError(f"it has fields that this version of the library does not know: {unknown_fields!s:.200}")
        return _entry_from_json(_require_string(encoded_prefix.decode(), MAX_PREFIX_CHARACTERS), fields)
    except (ValueError, KeyError, RecursionError) as error:  # lets the DecodeErrors above pass
        raise DecodeError(f"its value is not a decision log entry: {type(error).__name__}: {error!s:.200}") from error


def decode_followed_offset(value: bytes) -> int | None:
    """Return the offset of the newest record that the driver had read before this claim; -1 if there was none.

    Return None if the claim cannot be decoded or contains no offset.
    """
    return _decode_integer_field(value, "follows", default=None)


def decode_driver_number(value: bytes) -> int | None:
    """Return the number of the driver id that a record names as the current one. Return None for an invalid record."""
    number = _decode_integer_field(value, "driverNumber", default=FIRST_DRIVER_NUMBER)
    return None if number is None or number < FIRST_DRIVER_NUMBER else number


def _decode_integer_field(value: bytes, field: str, *, default: int | None) -> int | None:
    """Return an integer field of a record's JSON, or `default` if it is missing. Return None if the JSON is invalid."""
    try:
        number = json.loads(value).get(field, default) if len(value) <= MAX_VALUE_BYTES else None
        return None if number is None else int(number)
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return None


def _entry_from_json(prefix: str, fields: Mapping[str, Any]) -> Entry:
    """Convert a JSON object to an entry. Raise ValueError or KeyError if a field is invalid or missing.

    A field that `encode_entry` omits gets its default value. If there are more drivers or keyed jobs than an entry may
    list, only the newest ones are kept, as in `Entry.with_claim` and `Entry.as_done`.
    """
    state = EntryState(_require_string(fields["state"]))
    return Entry(
        prefix=prefix,
        state=state,
        batch=Batch(
            query_id=_require_if_present(fields["query"], _require_string),
            batch_id=_require_if_present(fields["batch"], _require_integer),
            key=_require_if_present(fields["key"], _require_string),
            scope=_require_string(fields["scope"]),
        ),
        summary=None if state is EntryState.OPEN else _summary_from_json(fields["content"]),
        is_unproven=_unproven_from_json(fields),
        transactions=tuple(
            _transaction_from_json(prefix, transaction) for transaction in _require_array(fields["transactions"])
        ),
        generation=_require_integer(fields["generation"], MAX_GENERATION),
        driver_names=tuple(_require_string(name) for name in _require_array(fields["drivers"])[-MAX_DRIVER_NAMES:]),
        checkpoint=_require_string(fields["checkpoint"]),
        timeout_ms=_require_integer(fields["timeoutMs"], _MAX_INT),
        keyed_jobs=tuple(_keyed_job_from_json(job) for job in _require_array(fields["keys"])[-MAX_KEYED_JOBS:]),
        claim_identity=_claim_identity_from_json(fields["claimed"]),
        writer_kind=WriterKind(_require_string(fields["writer"])) if "writer" in fields else None,
        driver_number=_require_integer(fields.get("driverNumber", FIRST_DRIVER_NUMBER), MAX_DRIVER_NUMBER),
    )


def _transaction_to_json(prefix: str, transaction: TransactionIdentity) -> Sequence[int]:
    """Return a task's transaction as six numbers: generation, partition, attempt, producer id, epoch and version.

    The first three replace the transactional id, which would be longer. For example, with the prefix `orders`, the
    transactional id `orders-2-17-0` becomes 2, 17, 0.
    """
    task_attempt = parse_task_attempt(prefix, transaction.transactional_id)
    assert task_attempt is not None
    return (*task_attempt, transaction.producer_id, transaction.epoch, transaction.version)


def _transaction_from_json(prefix: str, value: object) -> TransactionIdentity:
    """Convert the six numbers from `_transaction_to_json` back. Raise ValueError if they are invalid."""
    numbers = _require_array(value, length=6)
    task_attempt = TaskAttempt(*(_require_integer(number, MAX_TASK_NUMBER) for number in numbers[:3]))
    producer_id, epoch, version = (_require_integer(number) for number in numbers[3:])
    return TransactionIdentity(build_task_id(prefix, task_attempt), producer_id, epoch, version)


def _claim_identity_from_json(value: object) -> ProducerIdAndEpoch:
    """Return the producer id and epoch of the newest claim. Raise ValueError if they are invalid."""
    if value is None:
        return NO_PRODUCER_ID
    producer_id, epoch = _require_array(value, length=2)
    return ProducerIdAndEpoch(_require_integer(producer_id), _require_integer(epoch, _MAX_INT))


def _keyed_job_from_json(value: object) -> KeyedJob:
    fields = _require_object(value)
    return KeyedJob(
        key=_require_string(fields["key"]),
        scope=_require_string(fields["scope"]),
        summary=_summary_from_json(fields["content"]),
        is_unproven=_unproven_from_json(fields),
    )


def _keyed_job_to_json(job: KeyedJob) -> Mapping[str, object]:
    summary = dataclasses.asdict(job.summary)
    return {"key": job.key, "scope": job.scope, "content": summary, **_unproven_to_json(job.is_unproven)}


def _unproven_to_json(is_unproven: bool) -> Mapping[str, bool]:
    """Return the `unproven` field as a dict. The dict is empty if the field is false, because it is then omitted."""
    return {"unproven": True} if is_unproven else {}


def _unproven_from_json(fields: Mapping[str, Any]) -> bool:
    return _require_boolean(fields.get("unproven", False))


def _summary_from_json(value: object) -> BatchSummary:
    fields = _require_object(value)
    pairs = (_require_array(pair, length=2) for pair in _require_array(fields["topics"]))
    return BatchSummary(
        rows=_require_integer(fields["rows"]),
        payload_bytes=_require_integer(fields["payload_bytes"]),
        topics=tuple((_require_string(name), _require_integer(row_count)) for name, row_count in pairs),
        digest=_require_string(fields["digest"]),
    )


# --- type checks. Each returns the value, or raises ValueError with the value in the message


def _require_string(value: object, max_characters: int = _MAX_STRING_CHARACTERS) -> str:
    if not isinstance(value, str) or len(value) > max_characters:
        raise ValueError(f"expected a string of at most {max_characters} characters, not {value!r:.40}")
    return value


def _require_integer(value: object, max_value: int = _MAX_LONG) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= max_value:
        raise ValueError(f"expected an integer from 0 to {max_value}, not {value!r:.40}")
    return value


def _require_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {value!r:.40}")
    return value


def _require_array(value: object, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"expected an array{'' if length is None else f' of {length} values'}, not {value!r:.40}")
    return value


def _require_object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, not {value!r:.40}")
    return value


def _require_if_present(value: object, require_type: Callable[[object], ValueT]) -> ValueT | None:
    """Return None for None, and the result of `require_type` for any other value."""
    return None if value is None else require_type(value)
