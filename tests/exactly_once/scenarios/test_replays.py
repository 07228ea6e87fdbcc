"""A batch that is run again with the same rows is passed over; with others it is an error, or what the user chose."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from tests.exactly_once import rules
from tests.exactly_once.invariants import check
from tests.exactly_once.lives import LAST, Replay, World, one_process_at_a_time
from tests.exactly_once.script import Script

BOTH = pytest.mark.parametrize("version", [1, 2])


def replayed(version: int, replay: Replay) -> World:
    """driver-1 dies when it has committed batch 0 and before that is in the checkpoint; driver-2 runs it again."""
    world = World(version=version, batches=1, late_tasks=(), replay=replay)
    script = Script(world)
    world.add_driver("driver-1")
    script.kills("driver-1", since=lambda: any(entry.batch.batch_id == 0 for entry in world.decisions()))
    script.play()
    world.add_driver("driver-2")
    Script(world).play()
    world.add_driver(LAST)
    with one_process_at_a_time(world):
        world.stage.play(lambda point, chosen, others: chosen)
    check(world)
    return world


@BOTH
def test_skips_same_rows_without_warning(version: int) -> None:
    world = replayed(version, Replay.EQUAL)
    assert world.failed == {}
    assert [driver for driver, *_ in world.passed_over] == ["driver-2"]


@BOTH
def test_rejects_other_rows_with_both_counts(version: int) -> None:
    world = replayed(version, Replay.FAILS)
    error = world.failed["driver-2"]
    assert isinstance(error, ExactlyOnceError)
    assert "4 rows" in str(error)
    assert "8 rows" in str(error)


@BOTH
def test_skips_other_rows_with_on_replay_mismatch_warn(version: int) -> None:
    world = replayed(version, Replay.WARNS)
    assert world.failed == {}
    assert [driver for driver, *_ in world.passed_over] == ["driver-2"]


def test_other_rows_are_skipped_silently_if_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.skip_content_check(monkeypatch)
    with pytest.raises(AssertionError, match="driver-2 passed over"):
        replayed(2, Replay.FAILS)
