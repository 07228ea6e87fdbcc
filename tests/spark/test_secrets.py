"""A secret among the options appears nowhere: not in the plan, the event log, the logs, the errors, the checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.secrets_job import SECRET

pytestmark = pytest.mark.needs("java")


def test_no_secret_appears_in_anything_that_spark_shows_or_keeps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.secrets_job", str(tmp_path)]
    job = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    shown = job.stdout + job.stderr
    assert job.returncode == 0, shown[-5000:]

    # It did what could have shown them ...
    assert shown.count("=== failed: ") == 4
    assert shown.count("=== ended well") == 1
    assert "== Physical Plan ==" in shown
    assert "Unknown option 'tpoic'" in shown
    assert "127.0.0.1:1" in shown
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.name == "events" and path.stat().st_size > 10_000 for path in kept)
    assert any(path.parent.name == "commits" for path in kept)

    # ... and did not.
    assert SECRET not in shown
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
