"""Guarded fields: the locks that guard them, and a check that the locks are held: `with check_guards(): ...`.

A race between threads is too rare for a test to wait for it. The check does not depend on chance: it examines every
access to a guarded field by the package's code, and records those without the lock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import spark_kafka_sink
from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.log import PartitionLog
from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from spark_kafka_sink.broker.request_queue import RequestQueue
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.exporters.prometheus import WriteCollector
from spark_kafka_sink.network.security.oidc import TokenSource
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.partitioner import Partitioner
from spark_kafka_sink.producer.sending.call_executor import CallExecutor
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.requests.idle_clients import IdleClients

PACKAGE = str(Path(spark_kafka_sink.__file__).parent) + "/"


@dataclass(frozen=True)
class Guard:
    """The fields of a class that a lock guards."""

    cls: type
    lock: str
    fields: frozenset[str]
    """Fields that are neither read nor written without the lock."""
    written: frozenset[str] = frozenset()
    """Fields that are not written without the lock, but may be read."""
    exempt: frozenset[str] = frozenset()
    """Methods that need no lock, because the object is not shared yet or no longer changes, or stale values suffice."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


GUARDS = [
    Guard(
        Metadata,
        "_lock",
        _names("_topic_expiry_ms _new_topics _epochs _address_failures _node_failures _omitted_topics"),
        _names(
            "snapshot _update_version _is_full_update_requested _is_partial_update_requested _last_full_update_ms "
            "_backoff _fatal_error _is_closed _new_topics_version _response_problem"
        ),
        _names("has_connection_failures connection_failure"),
    ),
    Guard(
        BufferPool,
        "_lock",
        _names("_free_bytes _waiters"),
        _names("_is_closed total_wait_ms exhausted_count"),
        _names("__repr__ free_bytes waiter_count"),
    ),
    Guard(
        MemoryLease,
        "_lock",
        _names("_reserved_bytes _holders _needed_bytes"),
        exempt=_names("reserved_bytes is_sparse"),
    ),
    Guard(
        RecordAccumulator,
        "_lock",
        _names("_queues _incomplete_batches _node_availability"),
        _names("_is_closed"),
        _names("next_expiry_ms"),
    ),
    Guard(
        BatchFiller,
        "_lock",
        _names("_queues _incomplete_batches stages _stages_in_use _shared_leases _failed_batches"),
        exempt=_names("list_topics has_failed_batches has_rows"),
    ),
    Guard(
        TokenSource,
        "_lock",
        _names("_token _request_times _lifetime_s _renewal_age_s _is_renewing _request_error _retry_time_s"),
    ),
    Guard(WriteCollector, "_lock", _names("_states_by_query_id")),
    Guard(NetworkClient, "_state_lock", _names(""), _names("_state")),
    Guard(IdleClients, "_condition", _names("_idle_clients"), _names("_evictor"), _names("_reset")),
    Guard(
        ProducerMetrics,
        "_lock",
        _names(
            "_windowed_stats _meters _wait_times_ns _network _pending_send_totals _sent_request_count _totals "
            "_metrics_by_topic _last_send_update_ms"
        ),
    ),
    Guard(
        ColumnsFuture,
        "_lock",
        _names("_pending_row_count _stored_ranges _rows_written _failures"),
        exempt=_names("_complete"),
    ),
    Guard(Partitioner, "_lock", _names("_topic_states")),
    Guard(
        TransactionManager,
        "_lock",
        _names(
            "_lifecycle _transaction _transaction_count _last_transaction_version _needs_producer_id "
            "_init_request_identity _may_have_late_request"
        ),
        _names("id_and_epoch"),
        _names("state error fatal_error transactional_id"),
    ),
    Guard(CallExecutor, "_lock", _names("_awaited_calls _error")),
]

BROKER_GUARDS = [
    Guard(
        EmbeddedCluster,
        "lock",
        _names("topics coordinator offsets _moved_coordinators"),
        _names("change_count _next_timeout_ms"),
        _names("__repr__"),
    ),
    Guard(
        PartitionLog,
        "_lock",
        _names("_base_offsets _batches _producers _aborted_ranges"),
        _names("log_end_offset log_start_offset records_appended bytes_appended batches_appended"),
    ),
    Guard(RequestQueue, "_lock", _names("_requests _is_closed")),
    Guard(
        RequestPurgatory,
        "_lock",
        _names("_due_tasks _delayed_tasks _tasks_awaiting_change _last_number"),
        _names("_is_closed"),
        _names("release_on_change count"),
    ),
    Guard(Control, "_lock", _names("_rules"), exempt=_names("has_rules")),
]
"""Guards for the tests of the embedded broker only, because each guard slows down every access to its class."""


@contextmanager
def check_guards(guards: Sequence[Guard] = GUARDS) -> Iterator[list[str]]:
    """Record the accesses without a lock in the returned list, as `class.field in file:line`."""
    violations: list[str] = []
    with ExitStack() as patches:
        for guard in guards:
            for name in ("__getattribute__", "__setattr__"):
                checked = _build_checked_access(guard, name, getattr(guard.cls, name), violations)
                patches.enter_context(patch.object(guard.cls, name, checked))
        yield violations


def _build_checked_access(guard: Guard, name: str, original: Any, violations: list[str]) -> Any:
    fields = guard.fields if name == "__getattribute__" else guard.fields | guard.written

    def access(self: object, field: str, *value: object) -> object:
        if field in fields:
            caller = sys._getframe(1)
            if _must_hold_lock(caller.f_code, guard) and not _is_locked(self, caller, guard):
                violations.append(f"{guard.cls.__name__}.{field} in {caller.f_code.co_filename}:{caller.f_lineno}")
        return original(self, field, *value)

    return access


def _must_hold_lock(code: CodeType, guard: Guard) -> bool:
    """Return whether the code belongs to the package, and is neither exempt nor a constructor."""
    return code.co_filename.startswith(PACKAGE) and code.co_name not in guard.exempt | {"__init__", "_build_own_gauges"}


def _is_locked(accessed: object, caller: FrameType, guard: Guard) -> bool:
    """Return whether the lock is held, either of the accessed object or of the caller.

    The caller's lock is sufficient for an object that it has just created and that nobody else uses yet.
    """
    owners = (accessed, caller.f_locals.get("self"))
    return any(
        isinstance(owner, guard.cls) and _is_held(object.__getattribute__(owner, guard.lock)) for owner in owners
    )


def _is_held(lock: Any) -> bool:
    """Return whether this thread holds the lock. For plain locks, which have no owner, any thread counts."""
    if isinstance(lock, type(threading.Lock())):
        return lock.locked()
    return bool(lock._is_owned())
