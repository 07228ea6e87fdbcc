"""Histories of the decision log from the exactly-once explorer, checked by Porcupine, and corruptions that it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.support.linearizability import (
    CORRUPTIONS,
    Event,
    assert_corruption_is_found,
    check_histories,
    read_events,
    run_checker,
)
from tests.exactly_once import rules
from tests.exactly_once.explorer import explore_seed

pytestmark = pytest.mark.needs("go")
SEEDS = range(12)
DETECTING_SEEDS = (25,)
"""Seeds whose drivers read stale entries if they do not read the log after brokers granted the epoch.

A change of the code can change the runs of these seeds. The test then searches the seeds below MAX_SEARCHED_SEED.
"""
MAX_SEARCHED_SEED = 150


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the histories of SEEDS."""
    folder = tmp_path_factory.mktemp("histories")
    for seed in SEEDS:
        explore_seed(seed, histories=folder)
    (path,) = folder.iterdir()
    return path


def test_histories_of_explorer_are_linearizable(linearizability_checker: Path, histories: Path) -> None:
    output = check_histories(linearizability_checker, histories)
    assert output.startswith(f"{len(SEEDS)} histories, "), output
    assert " 0 not linearizable" in output


def test_history_is_not_linearizable_if_log_is_not_read_after_fence(
    linearizability_checker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules.skip_read_after_fence(monkeypatch)

    def is_linearizable(seed: int) -> bool:
        explore_seed(seed, [], histories=tmp_path / str(seed))
        return run_checker(linearizability_checker, *(tmp_path / str(seed)).iterdir())[0] == 0

    assert not all(is_linearizable(seed) for seed in (*DETECTING_SEEDS, *range(MAX_SEARCHED_SEED)))


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_corrupted_history_is_found(
    corrupt: Callable[[list[Event]], None], linearizability_checker: Path, histories: Path, tmp_path: Path
) -> None:
    events = [event for event in read_events([histories]) if event["history"] == "seed 0"]
    assert_corruption_is_found(linearizability_checker, events, corrupt, tmp_path / "corrupted.jsonl")
