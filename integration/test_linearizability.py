"""Histories of the decision log from the exactly-once explorer, checked by Porcupine, and corruptions that it finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.support.linearizability import check_histories, run_checker
from tests.exactly_once import rules
from tests.exactly_once.explorer import explore_seed

pytestmark = pytest.mark.needs("go")
SEEDS = range(30)
DETECTING_SEEDS = (25,)
"""Seeds whose drivers read stale entries if they do not read the log after brokers granted the epoch.

A change of the code can change the runs of these seeds. The test then searches the seeds below MAX_SEARCHED_SEED.
"""
MAX_SEARCHED_SEED = 150
Event = dict[str, Any]


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
        explore_seed(seed, [], tmp_path / str(seed))
        return run_checker(linearizability_checker, *(tmp_path / str(seed)).iterdir())[0] == 0

    assert not all(is_linearizable(seed) for seed in (*DETECTING_SEEDS, *range(MAX_SEARCHED_SEED)))


def read_stale_entry(events: list[Event]) -> None:
    """The last read returns the entry that was read first."""
    reads = [event for event in events if event.get("outcome") == "ok" and "value" in event]
    assert reads[0]["value"] != reads[-1]["value"]
    reads[-1]["value"] = reads[0]["value"]


def lose_decision(events: list[Event]) -> None:
    """The first decision was never written, and the record that its batch is done follows it all the same."""
    writes = [event for event in events if event.get("kind") == "write"]
    lost = next(event["operation"] for event in writes if event["value"].startswith("decided"))
    events[:] = [event for event in events if event["operation"] != lost]


def let_two_drivers_claim(events: list[Event]) -> None:
    """Another driver succeeds with a claim that follows the same entry as the first claim."""
    claim = next(event for event in events if event.get("kind") == "claim")
    response = next(event for event in events if event.get("outcome") and event["operation"] == claim["operation"])
    second = {**claim, "operation": "second", "client": "another driver", "value": claim["value"] + ", second"}
    events += [second, {**response, "operation": "second"}]


@pytest.mark.parametrize("corrupt", [read_stale_entry, lose_decision, let_two_drivers_claim])
def test_corrupted_history_is_found(
    corrupt: Callable[[list[Event]], None], linearizability_checker: Path, histories: Path, tmp_path: Path
) -> None:
    events = [json.loads(line) for line in histories.read_text().splitlines()]
    corrupted = [event for event in events if event["history"] == "seed 0"]
    corrupt(corrupted)
    path = tmp_path / "corrupted.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in corrupted))
    status, output = run_checker(linearizability_checker, path)
    assert status == 1, output
    assert "history seed 0, prefix p is not linearizable" in output
