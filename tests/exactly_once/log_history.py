"""Histories of operations on the decision log, which tools/linearizability checks with Porcupine.

    read     `QueryTransactions.read_entry`, which a driver calls after brokers have granted its epoch, and the entry
             that `Driver.begin` returns
    claim    `QueryTransactions.claim`, which ends when the claim was read back
    write    a decision, the record that a batch is done, a hand-over to the next driver id, or a deletion

Every claim and write names the entry that it follows, and may take effect only while that entry is the newest. An
operation that raised, or whose process died, has no response: it may take effect later, or never.

The reads of `read_current_entry` are not recorded, because they promise nothing: they may come before an epoch was
granted, when the markers of an acknowledged commit are not written yet. A driver that continues from such a read
without a claim has compared it with the description of its driver id; the read of `Driver.begin` records that.

A line is an invocation or a response:

    {"history": ..., "prefix": ..., "operation": ..., "time": ..., "client": ..., "kind": ..., "expected": ...,
     "value": ...}
    {"history": ..., "prefix": ..., "operation": ..., "time": ..., "outcome": "ok" or "failed", "value": ...}

`record_simulation` records the drivers of an explorer, `record_process` those of tests on a real Kafka cluster.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import decode_entry, encode_entry
from spark_kafka_sink.exactly_once.log_writer import KeyValue, LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from tests.exactly_once.scheduler import Scheduler

NO_ENTRY = ""
HISTORY_FOLDER = "PYKAFKA_TEST_HISTORY"
"""The environment variable with the folder of `record_process`, for drivers that tests start."""

PatchAttribute = Callable[[Any, str, Any], None]


class HistoryRecorder:
    """Writes the operations of one history. `clock` never goes back, and is the same for all clients."""

    def __init__(
        self, name: str, write_line: Callable[[str], object], clock: Callable[[], int], client: Callable[[], str]
    ) -> None:
        self._name = name
        self._write_line = write_line
        self._clock = clock
        self._client = client
        self._newest: WeakKeyDictionary[QueryTransactions, Entry] = WeakKeyDictionary()
        """The entry that is the newest one unless another driver has written since."""

    def begin(self, prefix: str, kind: str, **fields: str) -> Operation:
        operation = Operation(self, prefix, uuid.uuid4().hex)
        self.write(operation, client=self._client(), kind=kind, **fields)
        return operation

    def write(self, operation: Operation, **fields: str) -> None:
        common = {"history": self._name, "prefix": operation.prefix, "operation": operation.identifier}
        self._write_line(json.dumps({**common, "time": self._clock(), **fields}) + "\n")

    def install(self, patch_attribute: PatchAttribute = setattr) -> None:
        """Wrap the methods of the operations, in this process and in those that are forked from it."""
        for owner, name, wrapper in (
            (Driver, "begin", self._wrap_begin),
            (QueryTransactions, "read_entry", self._wrap_read),
            (QueryTransactions, "claim", self._wrap_claim),
            (QueryTransactions, "write_next_entry", self._wrap_write_next_entry),
            (QueryTransactions, "_reclaim_prefix", self._wrap_reclaim),
            (QueryTransactions, "_begin_transaction", self._wrap_begin_transaction),
        ):
            method = getattr(owner, name)
            patch_attribute(owner, name, functools.wraps(method)(wrapper(method)))

    def _wrap_begin(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def begin(driver: Driver, name: str) -> Any:
            operation = self.begin(driver._transactions.prefix, "read")
            start = method(driver, name)
            operation.end_read(start.entry)
            return start

        return begin

    def _wrap_read(self, method: Callable[..., Entry]) -> Callable[..., Entry]:
        def read_entry(query: QueryTransactions) -> Entry:
            operation = self.begin(query.prefix, "read")
            entry = method(query)
            operation.end_read(entry)
            return entry

        return read_entry

    def _wrap_claim(self, method: Callable[..., ProducerIdAndEpoch]) -> Callable[..., ProducerIdAndEpoch]:
        def claim(
            query: QueryTransactions, identity: ProducerIdAndEpoch, found: Entry, claim: Entry, **named: Any
        ) -> ProducerIdAndEpoch:
            operation = self.begin(query.prefix, "claim", expected=describe_entry(found), value=describe_entry(claim))
            new_identity = method(query, identity, found, claim, **named)
            operation.end("ok")
            self._newest[query] = claim
            return new_identity

        return claim

    def _wrap_write_next_entry(self, method: Callable[..., WriterState]) -> Callable[..., WriterState]:
        def write_next_entry(query: QueryTransactions, state: WriterState, previous: Entry, *arguments: Any) -> Any:
            known = self._newest.get(query)
            if known is None or not known.is_same_apart_from_reclaim(previous):
                self._newest[query] = previous
            return method(query, state, previous, *arguments)

        return write_next_entry

    def _wrap_reclaim(
        self, method: Callable[..., tuple[WriterState, Entry]]
    ) -> Callable[..., tuple[WriterState, Entry]]:
        def reclaim(query: QueryTransactions, *arguments: Any) -> tuple[WriterState, Entry]:
            state, newest = method(query, *arguments)
            self._newest[query] = newest
            return state, newest

        return reclaim

    def _wrap_begin_transaction(self, method: Callable[..., LogTransaction]) -> Callable[..., LogTransaction]:
        def begin_transaction(
            query: QueryTransactions, state: WriterState, records: Sequence[KeyValue]
        ) -> LogTransaction:
            key, value = records[-1]
            if key != query.prefix.encode():
                return method(query, state, records)  # `claim` writes it, and is recorded itself.
            entry = Entry(query.prefix) if value is None else decode_entry(key, value)
            expected = describe_entry(self._newest[query])
            operation = self.begin(query.prefix, "write", expected=expected, value=describe_entry(entry))
            transaction = method(query, state, records)
            commit, abort = transaction.commit, transaction.abort

            def recorded_commit(*arguments: Any) -> WriterState:
                new_state = commit(*arguments)
                operation.end("ok")
                self._newest[query] = entry
                return new_state

            def recorded_abort() -> None:
                abort()
                operation.end("failed")

            transaction.commit, transaction.abort = recorded_commit, recorded_abort  # type: ignore[method-assign,assignment]
            return transaction

        return begin_transaction


class Operation:
    """An operation that was invoked. Without `end`, its outcome is unknown."""

    def __init__(self, recorder: HistoryRecorder, prefix: str, identifier: str) -> None:
        self.prefix = prefix
        self.identifier = identifier
        self._recorder = recorder

    def end(self, outcome: str) -> None:
        self._recorder.write(self, outcome=outcome)

    def end_read(self, entry: Entry) -> None:
        """End a read, unless the entry is unproven: its fields then differ from those that were written."""
        if not entry.is_unproven:
            self._recorder.write(self, outcome="ok", value=describe_entry(entry))


def describe_entry(entry: Entry) -> str:
    """Return a text that differs for different entries: its main fields, and a digest of all fields."""
    if not entry.generation:
        return NO_ENTRY
    digest = hashlib.sha256(encode_entry(entry)).hexdigest()[:12]
    batch = "" if entry.batch.batch_id is None else f" batch {entry.batch.batch_id}"
    identity = entry.claim_identity
    return (
        f"{entry.state.value}{batch}, generation {entry.generation}, {entry.claimant_name}, producer id "
        f"{identity.producer_id}, epoch {identity.epoch}, {digest}"
    )


@contextmanager
def record_simulation(scheduler: Scheduler, name: str, folder: Path) -> Iterator[None]:
    """Append the operations of the scheduler's actors to the file of this process in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = itertools.count()  # One actor runs at any moment, so the order of the events is their time.
    with ExitStack() as resources:
        file = resources.enter_context((folder / f"{os.getpid()}.jsonl").open("a"))

        def find_client() -> str:
            assert scheduler.current is not None
            return scheduler.current.name

        def patch_method(owner: Any, attribute: str, value: Any) -> None:
            resources.enter_context(patch.object(owner, attribute, value))

        HistoryRecorder(name, file.write, lambda: next(clock), find_client).install(patch_method)
        yield


def delete_histories(folder: Path) -> None:
    """Delete the histories in the folder, because histories of two runs with the same name would be merged."""
    for file in folder.glob("*.jsonl"):
        file.unlink()


def record_process(folder: Path) -> None:
    """Append the operations of this process, and of those that are forked from it, to a file per process in the folder.

    All files of the folder belong to one history, which has the name of the folder. The processes must run on one
    machine, because the times come from its monotonic clock.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def write_line(line: str) -> None:
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(line)

    HistoryRecorder(folder.name, write_line, time.monotonic_ns, lambda: f"process {os.getpid()}").install()
