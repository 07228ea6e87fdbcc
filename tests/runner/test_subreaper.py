"""subreaper: waits for orphaned descendants, counts their CPU time, and kills those that do not end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CPU_CODE = "import time\nwhile time.process_time() < 0.5: pass"
ORPHAN_CODE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CPU_CODE!r}], start_new_session=True)"


def run_code(code: str, prepare: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code with `subreaper.run`, and print the CPU time of its descendants."""
    script = f"""
import os, sys, tests.runner.subreaper as subreaper
{prepare}
status = subreaper.run([sys.executable, "-c", {code!r}])
print(os.times().children_user + os.times().children_system)
sys.exit(status)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_counts_cpu_time_of_orphaned_process() -> None:
    done = run_code(ORPHAN_CODE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


def test_kills_and_reports_process_that_does_not_end() -> None:
    endless_code = "import subprocess, sys; print(subprocess.Popen(['sleep', '100000'], start_new_session=True).pid)"
    done = run_code(endless_code, "subreaper.GRACE_SECONDS = 0.0")
    assert "Killed a process that did not end: sleep 100000" in done.stderr
    assert not Path(f"/proc/{done.stdout.split()[0]}").exists()


def test_returns_exit_status_of_command() -> None:
    assert run_code("raise SystemExit(3)").returncode == 3


def test_returns_signal_status_of_killed_command() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.runner.subreaper",
        sys.executable,
        "-c",
        "import os; os.kill(os.getpid(), 9)",
    ]
    assert subprocess.run(command, check=False).returncode == 128 + 9
