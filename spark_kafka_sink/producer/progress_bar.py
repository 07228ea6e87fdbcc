"""How far a command or a call is: a bar on a terminal that tqdm draws, and for a command a line at its end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from spark_kafka_sink.network.system import OperatingSystem


class Progress:
    """A context manager, on stderr, so that stdout stays the command's own. `total` is None if it is not known."""

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        prints_total: bool = True,
        is_shown: bool = True,
        delay_s: float = 0,
    ) -> None:
        """`prints_total`: say at the end how many there were. `delay_s`: what is over sooner has no bar."""
        self.done = 0
        self._says_total = prints_total
        self._what = what
        self._system = OperatingSystem()
        self._started_ms = self._system.now()
        self._bar = _bar(what, total, delay_s) if is_shown and sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is None and self._says_total:
            seconds = (self._system.now() - self._started_ms) / 1000
            noun = self._what.removesuffix("s") if self.done == 1 else self._what
            print(f"{self.done:,} {noun} in {seconds:.1f} s", file=sys.stderr)

    def advance(self, number: int) -> None:
        self.done += number
        if self._bar is not None:
            self._bar.update(number)


def _bar(what: str, total: int | None, delay_s: float) -> Any | None:
    """None without tqdm, which is in the extra `cli`: then there is the line at the end."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=f" {what}", unit_scale=True, leave=False, file=sys.stderr, delay=delay_s)
