"""What a command leaves behind is waited for: its CPU time counts, and it does not run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SPENDS = "import time\nwhile time.process_time() < 0.5: pass"
LEAVES = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPENDS!r}], start_new_session=True)"


def adopted(code: str, prepare: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python code below `run`, and says what its children's CPU time was."""
    script = f"""
import os, sys, tests.runner.adopting as adopting
{prepare}
status = adopting.run([sys.executable, "-c", {code!r}])
print(os.times().children_user + os.times().children_system)
sys.exit(status)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_the_cpu_time_of_what_outlives_its_parent_counts() -> None:
    done = adopted(LEAVES)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


def test_what_does_not_end_by_itself_is_named_and_killed() -> None:
    for_ever = "import subprocess, sys; print(subprocess.Popen(['sleep', '100000'], start_new_session=True).pid)"
    done = adopted(for_ever, "adopting.GRACE_SECONDS = 0.0")
    assert "left behind, and killed: sleep 100000" in done.stderr
    assert not Path(f"/proc/{done.stdout.split()[0]}").exists()


def test_the_status_is_that_of_the_command() -> None:
    assert adopted("raise SystemExit(3)").returncode == 3


def test_a_command_that_is_killed_has_failed() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.runner.adopting",
        sys.executable,
        "-c",
        "import os; os.kill(os.getpid(), 9)",
    ]
    assert subprocess.run(command, check=False).returncode == 128 + 9
