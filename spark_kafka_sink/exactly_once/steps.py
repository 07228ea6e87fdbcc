"""Where a test may stop the process: before and after each step of docs/exactly-once.md.

Nothing happens without the environment variable FOLDER. With it, a process that reaches a place (`before decide`,
`after commit`) for which that folder has a file `stop before decide` renames the file to `stopped before decide`, puts
its process id there, and waits until the file is gone. The test kills the driver meanwhile, or removes the file to let
the process go on. docs/developing.md has an example.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

FOLDER = "PYKAFKA_TEST_STEPS"

START, TASK, WRITE, DECIDE, COMMIT, ABORT, LOSERS = "start", "task", "write", "decide", "commit", "abort", "losers"
STEPS = (START, TASK, WRITE, DECIDE, COMMIT, ABORT, LOSERS)

_LOOK_AGAIN_SECONDS = 0.02


def before(step: str) -> None:
    _reached(f"before {step}")


def after(step: str) -> None:
    _reached(f"after {step}")


def _reached(place: str) -> None:
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    stopped = Path(folder, f"stopped {place}")
    try:
        Path(folder, f"stop {place}").rename(stopped)  # of several processes one stops
    except FileNotFoundError:
        return
    stopped.write_text(str(os.getpid()))
    pause = threading.Event()
    while stopped.exists():
        pause.wait(_LOOK_AGAIN_SECONDS)
