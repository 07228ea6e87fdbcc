from __future__ import annotations

import subprocess
import sys


def test_producer_never_imports_pandas() -> None:
    command = [sys.executable, "-m", "tests.producer.without_pandas"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
