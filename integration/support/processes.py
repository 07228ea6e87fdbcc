"""The processes of this machine, as far as tests and benchmarks must find, kill and measure them (Linux: /proc)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

_ESTABLISHED = "01"


def descendants(root: int) -> list[int]:
    """All processes below `root`, without itself."""
    parents = {pid: int(stat[1]) for pid in pids() if (stat := _stat(pid))}
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {root})


def kill_all(root: int) -> None:
    """kill -9 for a process and all below it."""
    for pid in (root, *descendants(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP for a child of this process. When this returns, each of its threads stands still, or it has ended.

    The signal is only sent by `kill`: a thread that runs on the other core may still answer a request after it.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def command_line(pid: int) -> list[str]:
    """Empty if the process is gone."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended and were waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def own_cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children; 0 if it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


class CpuMeter:
    """Counts the CPU time of this process and of those below it, of those too that end in between; a context manager.

    It looks four times in a second: what a process uses after the last look is not counted. The system does not
    keep what Spark's Python workers used that have ended: their daemon ignores SIGCHLD.
    """

    def __init__(self, without: int | None) -> None:
        self._without = without
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuMeter:
        self._look()
        self._first = dict(self._last)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    @property
    def seconds(self) -> float:
        return sum(last - self._first.get(pid, 0.0) for pid, last in self._last.items())

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self._look()

    def _look(self) -> None:
        for pid in (os.getpid(), *descendants(os.getpid())):
            if pid != self._without:
                self._last[pid] = max(own_cpu_seconds(pid), self._last.get(pid, 0.0))


def resident_bytes(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def python_workers(root: int) -> Iterator[int]:
    """The Python workers of the Spark whose driver is `root`."""
    for pid in descendants(root):
        if "pyspark.daemon" in command_line(pid):
            yield pid


def connections_to(pid: int, port: int) -> int:
    """How many established TCP connections to this port a process holds."""
    held: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(os.readlink(descriptor))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return sum(
        row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED and f"socket:[{row[9]}]" in held for row in rows
    )


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty if the process is gone."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []
