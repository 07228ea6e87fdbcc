"""Batches that run again: a driver skips a decided batch with the same rows; other rows are an error or a warning."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from tests.exactly_once import rules
from tests.exactly_once.invariants import check_invariants
from tests.exactly_once.script import Script
from tests.exactly_once.simulated_processes import run_isolated
from tests.exactly_once.simulation import LAST_DRIVER, Simulation, SourceReplay
from tests.exactly_once.two_driver_simulation import BOTH_VERSIONS


def simulate_replay(version: int, source_replay: SourceReplay) -> Simulation:
    """Return a simulation in which driver-2 has run batch 0 again.

    driver-1 was killed after it had committed batch 0, before the checkpoint included the batch.
    """
    simulation = Simulation(version=version, batches=1, late_tasks=(), source_replay=source_replay)
    script = Script(simulation)
    simulation.add_driver("driver-1")
    script.kill("driver-1", since=lambda: any(entry.batch.batch_id == 0 for entry in simulation.read_entries()))
    script.run()
    simulation.add_driver("driver-2")
    Script(simulation).run()
    simulation.add_driver(LAST_DRIVER)
    run_isolated(simulation)
    check_invariants(simulation)
    return simulation


@BOTH_VERSIONS
def test_skips_same_rows_without_warning(version: int) -> None:
    simulation = simulate_replay(version, SourceReplay.SAME_ROWS)
    assert simulation.errors == {}
    assert [driver for driver, *_ in simulation.skipped_batches] == ["driver-2"]


@BOTH_VERSIONS
def test_rejects_other_rows_with_both_counts(version: int) -> None:
    simulation = simulate_replay(version, SourceReplay.OTHER_ROWS_FAIL)
    error = simulation.errors["driver-2"]
    assert isinstance(error, ExactlyOnceError)
    assert "4 rows" in str(error)
    assert "8 rows" in str(error)


@BOTH_VERSIONS
def test_skips_other_rows_with_on_replay_mismatch_warn(version: int) -> None:
    simulation = simulate_replay(version, SourceReplay.OTHER_ROWS_WARN)
    assert simulation.errors == {}
    assert [driver for driver, *_ in simulation.skipped_batches] == ["driver-2"]


def test_other_rows_are_skipped_silently_if_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.skip_content_check(monkeypatch)
    with pytest.raises(AssertionError, match="driver-2 skipped"):
        simulate_replay(2, SourceReplay.OTHER_ROWS_FAIL)
