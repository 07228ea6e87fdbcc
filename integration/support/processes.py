"""Functions that find, kill and measure processes in tests and benchmarks (Linux: /proc)."""

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
    """Return the ids of all descendants of a process."""
    parents = {pid: int(stat[1]) for pid in list_pids() if (stat := _read_stat(pid))}
    family = {root}
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    return sorted(family - {root})


def kill_all(root: int) -> None:
    """Kill a process and all its descendants with SIGKILL."""
    for pid in (root, *descendants(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Suspend a child process with SIGSTOP, and wait until all its threads are suspended or it has ended.

    `kill` alone only sends the signal: a thread that runs on another core may still respond to a request after it.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def list_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process, or an empty list if it has ended."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, including children that have ended and were waited for."""
    fields = _read_stat(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def own_cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process without its children, or 0 if it has ended."""
    fields = _read_stat(pid)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


class CpuMeter:
    """Measures the CPU time of this process and its descendants during a `with` block.

    It takes four samples per second; CPU time of a process after its last sample is not counted. The kernel does not
    keep the CPU time of Spark's Python workers that have ended, because their daemon ignores SIGCHLD.
    """

    def __init__(self, excluded_pid: int | None) -> None:
        self._excluded_pid = excluded_pid
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuMeter:
        self._sample()
        self._first = dict(self._last)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    @property
    def seconds(self) -> float:
        return sum(last - self._first.get(pid, 0.0) for pid, last in self._last.items())

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            self._sample()

    def _sample(self) -> None:
        for pid in (os.getpid(), *descendants(os.getpid())):
            if pid != self._excluded_pid:
                self._last[pid] = max(own_cpu_seconds(pid), self._last.get(pid, 0.0))


def read_resident_bytes(pid: int) -> int:
    fields = _read_stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def python_workers(root: int) -> Iterator[int]:
    """Yield the Python workers of the Spark driver `root`."""
    for pid in descendants(root):
        if "pyspark.daemon" in command_line(pid):
            yield pid


def count_connections(pid: int, port: int) -> int:
    """Return the number of established TCP connections of a process to a port."""
    targets: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                targets.add(os.readlink(descriptor))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return sum(
        row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED and f"socket:[{row[9]}]" in targets for row in rows
    )


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on, or an empty list if the process has ended."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []
