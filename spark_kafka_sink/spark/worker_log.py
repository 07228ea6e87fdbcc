"""Logging in the Python processes that Spark starts: the workers that run tasks, and those that plan and commit.

The application's logging configuration does not reach these processes. By default, Python prints warnings with no time,
level or logger name, and drops INFO messages. `install_stderr_handler` adds a handler that also prints INFO messages,
in a format like that of Spark's own log. In warnings, it adds the prefix `kafka.` to producer options. The handler
prints nothing if the user has configured logging in the process.
"""

from __future__ import annotations

import logging
import sys

from spark_kafka_sink.spark.options.names import add_kafka_prefix

LOGGER = logging.getLogger("spark_kafka_sink")
"""The parent of this package's module loggers. Write results are logged to it directly, at level INFO."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TIME_FORMAT = "%y/%m/%d %H:%M:%S"


class _PrefixingFormatter(logging.Formatter):
    """Adds the prefix `kafka.` to the producer options in warnings, because the producer and the client omit it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of logging.Formatter
        line = super().formatMessage(record)
        # INFO messages report results and name no options. Leave them alone, because compiling the pattern takes longer
        # than logging the result of a write.
        return add_kafka_prefix(line) if record.levelno >= logging.WARNING else line


class _StderrHandler(logging.Handler):
    """Prints log messages to stderr, which Spark collects.

    It prints warnings from all of this package's modules, and INFO messages that are logged to LOGGER directly.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to print the record. Nothing is printed if the user has configured a root handler."""
        if logging.getLogger().handlers:
            return False
        return record.levelno >= logging.WARNING or record.name == LOGGER.name

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


_STDERR_HANDLER = _StderrHandler()
_STDERR_HANDLER.setFormatter(_PrefixingFormatter(_FORMAT, _TIME_FORMAT))


def install_stderr_handler() -> None:
    """Install the handler for this package's loggers, unless it is installed already.

    Any entry point may be the first one that Spark calls in a worker process, so all of them call this function.
    """
    if _STDERR_HANDLER not in LOGGER.handlers:
        LOGGER.addHandler(_STDERR_HANDLER)
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
