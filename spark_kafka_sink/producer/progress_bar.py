"""Progress of a command or call: a tqdm bar if stderr is a terminal, and a final line with the total."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from spark_kafka_sink.network.system import OperatingSystem


class Progress:
    """A context manager that shows progress on stderr, because stdout is reserved for the command's output."""

    def __init__(
        self,
        noun: str,
        total: int | None = None,
        *,
        prints_total: bool = True,
        is_shown: bool = True,
        delay_s: float = 0,
    ) -> None:
        """Create a progress display.

        `noun`: a plural noun for the counted items, such as `records`.
        `total`: the expected number of items; None if it is unknown.
        `prints_total`: whether to print a final line with the number of items and the elapsed time.
        `is_shown`: whether to show a bar if stderr is a terminal.
        `delay_s`: how many seconds to wait before showing the bar, so that short calls show none.
        """
        self.done_count = 0
        self._prints_total = prints_total
        self._noun = noun
        self._system = OperatingSystem()
        self._started_ms = self._system.now()
        self._bar = _create_bar(noun, total, delay_s) if is_shown and sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if exc_type is None and self._prints_total:
            seconds = (self._system.now() - self._started_ms) / 1000
            noun = self._noun.removesuffix("s") if self.done_count == 1 else self._noun
            print(f"{self.done_count:,} {noun} in {seconds:.1f} s", file=sys.stderr)

    def advance(self, count: int) -> None:
        """Count this many more items as done."""
        self.done_count += count
        if self._bar is not None:
            self._bar.update(count)


def _create_bar(noun: str, total: int | None, delay_s: float) -> Any | None:
    """Create a tqdm bar. Return None if tqdm is not installed; the extra `cli` installs it."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=f" {noun}", unit_scale=True, leave=False, file=sys.stderr, delay=delay_s)
