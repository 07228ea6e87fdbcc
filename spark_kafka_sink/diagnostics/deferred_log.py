"""Log records that are held back until a check ends, and warnings that are logged only once per process.

Checks of options and connections log while they run. If a check raises an error, the error message already lists
everything that was logged, in order and with suggested fixes. The log records would only repeat the message or warn
about a write that never happens, so they are dropped. If the check passes, the records are emitted when it ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGE = "spark_kafka_sink"
_MAX_LOGGED_WARNINGS = 256
_WARN_ONCE_ATTRIBUTE = "pykafka_once"

_logged_warnings: dict[str, None] = {}
"""The messages that `warn_once` has logged, oldest first."""


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning unless this process has logged it before.

    A streaming query parses its options for every micro-batch and would otherwise repeat the warnings each time.
    """
    if message in _logged_warnings:
        return
    if len(_logged_warnings) >= _MAX_LOGGED_WARNINGS:
        oldest_message = next(iter(_logged_warnings))
        del _logged_warnings[oldest_message]
    _logged_warnings[message] = None
    log.warning("%s", message, extra={_WARN_ONCE_ATTRIBUTE: message})


def clear_logged_warnings() -> None:
    """Let `warn_once` log every message again (tests only)."""
    _logged_warnings.clear()


@contextmanager
def defer_log(exempt: str = "") -> Iterator[None]:
    """Hold back the log records that this package emits in the current thread until the block ends.

    If the block raises, the records are dropped, and `warn_once` may log their messages again. Records of loggers that
    are created during the block are not held back.

    `exempt`: a subpackage whose records are not held back, because they explain to the user why the block is slow.
    """
    thread_id = threading.get_ident()
    deferred_records: list[logging.LogRecord] = []

    def filter_record(record: logging.LogRecord) -> bool:
        """Return whether to emit the record now. Records of this thread are held back."""
        if record.thread != thread_id:
            return True
        deferred_records.append(record)
        return False

    loggers = [logger for logger in _find_loggers(PACKAGE) if not (exempt and _is_in_package(logger.name, exempt))]
    for logger in loggers:
        logger.addFilter(filter_record)
    try:
        yield
    except BaseException:
        # The warnings were not shown, so `warn_once` must not suppress them the next time.
        for record in deferred_records:
            _logged_warnings.pop(getattr(record, _WARN_ONCE_ATTRIBUTE, ""), None)
        deferred_records.clear()
        raise
    finally:
        for logger in loggers:
            logger.removeFilter(filter_record)
        for record in deferred_records:
            logging.getLogger(record.name).handle(record)


def _find_loggers(package: str) -> list[logging.Logger]:
    """Return the existing loggers of the package and its modules."""
    # Copy the values, because other threads may create loggers.
    loggers = list(logging.root.manager.loggerDict.values())
    return [logger for logger in loggers if isinstance(logger, logging.Logger) and _is_in_package(logger.name, package)]


def _is_in_package(logger_name: str, package: str) -> bool:
    return logger_name == package or logger_name.startswith(f"{package}.")
