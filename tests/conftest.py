"""Check of every access to guarded fields in the tests of classes with a lock (tests/guarded_fields.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interrupts import restore_sigint

ROOT = Path(__file__).resolve().parent
GUARDED = (
    "client/",
    "exactly_once/test_clients.py",
    "exporters/test_prometheus.py",
    "network/security/test_oidc.py",
    "producer/batching/test_accumulator.py",
    "producer/batching/test_batch_filler.py",
    "producer/batching/test_buffer_pool.py",
    "producer/scenarios/test_drain.py",
    "producer/scenarios/test_batch_completion.py",
    "producer/test_futures.py",
    "producer/test_metrics.py",
    "producer/test_network_metrics.py",
    "producer/test_partitioner.py",
    "producer/test_transaction_waits.py",
    "producer/test_transactional_producer.py",
    "producer/transactions/test_manager",
    "requests/test_idle_clients.py",
)
BROKER = "broker/"


def pytest_configure() -> None:
    restore_sigint()


@pytest.fixture(autouse=True)
def guarded_fields(request: pytest.FixtureRequest) -> Iterator[None]:
    path = request.node.path.relative_to(ROOT).as_posix()
    if not path.startswith((*GUARDED, BROKER)):
        yield
        return
    # Imported here, because some tests must not import the package.
    from tests.guarded_fields import BROKER_GUARDS, GUARDS, check_guards

    with check_guards(BROKER_GUARDS if path.startswith(BROKER) else GUARDS) as violations:
        yield
    assert sorted(set(violations)) == [], "accessed without the lock"
