"""Log lines in the Python processes that Spark starts: the executors' workers, and those that plan and commit.

The logging configuration of the application does not reach these processes. Without one Python prints the bare text
of a warning, and no line of level INFO. `show_log` adds what Spark's own log has: time, level and logger. Nothing is
printed where the user has configured logging in the process.
"""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("spark_kafka_sink")
"""What was written is logged here at level INFO; the modules have loggers below it."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME_FORMAT = "%y/%m/%d %H:%M:%S"


class _ToStderr(logging.Handler):
    """Spark collects what its Python processes print to stderr."""

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.getLogger().handlers:
            return False
        return record.levelno >= logging.WARNING or record.name == LOGGER.name

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


_TO_STDERR = _ToStderr()
_TO_STDERR.setFormatter(logging.Formatter(_FORMAT, _TIME_FORMAT))


def install_stderr_handler() -> None:
    """Called at every door by which Spark enters: a process may serve many tasks, and the first call counts."""
    if _TO_STDERR not in LOGGER.handlers:
        LOGGER.addHandler(_TO_STDERR)
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
