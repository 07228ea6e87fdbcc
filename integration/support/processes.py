"""The processes of this machine, as far as tests and benchmarks must find, kill and measure them (Linux: /proc)."""

from __future__ import annotations

import contextlib
import os
import signal
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
