"""Logging in the Python processes that Spark starts: the executors' workers and those that plan and commit.

The logging configuration of the application does not reach these processes. Without a configuration, Python prints
only the message of a warning, and no messages of level INFO. `install_stderr_handler` adds a handler that also prints
the time, level and logger, as Spark's own log does. The handler prints nothing if the user has configured logging in
the process.
"""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("spark_kafka_sink")
"""The logger for results of writes, at level INFO. The loggers of the modules are its children."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME_FORMAT = "%y/%m/%d %H:%M:%S"


class _StderrHandler(logging.Handler):
    """Prints warnings of all modules and the INFO messages of LOGGER to stderr, which Spark collects."""

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.getLogger().handlers:
            return False
        return record.levelno >= logging.WARNING or record.name == LOGGER.name

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


_STDERR_HANDLER = _StderrHandler()
_STDERR_HANDLER.setFormatter(logging.Formatter(_FORMAT, _TIME_FORMAT))


def install_stderr_handler() -> None:
    """Install the handler unless it is installed.

    Every entry point that Spark calls in a worker process calls this function, since any of them may come first.
    """
    if _STDERR_HANDLER not in LOGGER.handlers:
        LOGGER.addHandler(_STDERR_HANDLER)
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
