"""The checker of histories of the decision log: a program in Go that uses Porcupine (tools/linearizability)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from integration.support.artifacts import ROOT

SOURCE = ROOT / "tools" / "linearizability"
Event = dict[str, Any]


def build_checker(folder: Path) -> Path:
    """Build the program in the folder, and return its path."""
    path = folder / "linearizability"
    subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCE, check=True)
    return path


def run_checker(checker: Path, *files: Path) -> tuple[int, str]:
    """Check the histories in the files. Return the exit status and the output."""
    completed = subprocess.run(
        [checker, *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return completed.returncode, completed.stdout


def check_histories(checker: Path, *files: Path) -> str:
    """Check that the histories in the files are linearizable. Return the counts."""
    status, output = run_checker(checker, *files)
    assert status == 0, output
    return output.strip()


def find_files(folder: Path) -> list[Path]:
    """Return the files of all histories that the tests of a module have recorded in the folder."""
    files = list(folder.glob("*/*.jsonl"))
    assert files, "no history was recorded: run the tests of the module that kill or suspend drivers, too"
    return files


def read_events(files: Iterable[Path]) -> list[Event]:
    """Return the events of all histories in the files, in the order of their times."""
    events = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event["time"])


def assert_corruption_is_found(
    checker: Path, events: Iterable[Event], corrupt: Callable[[list[Event]], None], path: Path
) -> None:
    """Corrupt the events of one history and prefix, write them to `path`, and check that the program rejects them."""
    corrupted = list(events)
    history, prefix = corrupted[0]["history"], corrupted[0]["prefix"]
    corrupt(corrupted)
    path.write_text("".join(json.dumps(event) + "\n" for event in corrupted))
    status, output = run_checker(checker, path)
    assert status == 1, output
    assert f"history {history}, prefix {prefix} is not linearizable" in output


def read_stale_entry(events: list[Event]) -> None:
    """Make the last read return the entry that was read first."""
    reads = [event for event in events if event.get("outcome") == "ok" and "value" in event]
    assert reads[0]["value"] != reads[-1]["value"]
    reads[-1]["value"] = reads[0]["value"]


def lose_decision(events: list[Event]) -> None:
    """Remove the first decision, but keep the record that its batch is done."""
    writes = [event for event in events if event.get("kind") == "write"]
    lost_operation = next(event["operation"] for event in writes if event["value"].startswith("decided"))
    events[:] = [event for event in events if event["operation"] != lost_operation]


def let_two_drivers_claim(events: list[Event]) -> None:
    """Add a successful claim by another driver that follows the same entry as the first successful claim."""
    responses = {event["operation"]: event for event in events if event.get("outcome") == "ok"}
    claim = next(event for event in events if event.get("kind") == "claim" and event["operation"] in responses)
    second_claim = {**claim, "operation": "second", "client": "another driver", "value": claim["value"] + ", second"}
    events += [second_claim, {**responses[claim["operation"]], "operation": "second"}]


CORRUPTIONS = (read_stale_entry, lose_decision, let_two_drivers_claim)
"""Changes of a history after which no order of its operations explains it."""
