"""Log lines that wait for the end of a check: beside an error there is no warning.

Checks of options and of connections log as they go. If they end in an error, that has all of it, in order and with what
to do; the lines would say it a second time, or warn of what was not done. If they pass, the lines appear after all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGE = "spark_kafka_sink"
_LOGGED_MAX = 256
_ONCE = "pykafka_once"

_logged: dict[str, None] = {}
"""What warn_once has logged, the oldest first."""


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning once in a process: a stream has its options read for every micro-batch."""
    if message in _logged:
        return
    if len(_logged) >= _LOGGED_MAX:
        del _logged[next(iter(_logged))]
    _logged[message] = None
    log.warning("%s", message, extra={_ONCE: message})


def forget() -> None:
    """For tests: what was logged once may be logged again."""
    _logged.clear()


@contextmanager
def defer_log(exempt: str = "") -> Iterator[None]:
    """Keep the lines of this thread and this package until the block ends, and drop them if it raises.

    `exempt`: a package whose lines appear at once, since they say what a user waits for.
    """
    thread, held = threading.get_ident(), list[logging.LogRecord]()

    def is_of_others(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        held.append(record)
        return False

    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger)
        and (name + ".").startswith(PACKAGE + ".")
        and not (exempt and (name + ".").startswith(exempt + "."))
    ]
    for logger in loggers:
        logger.addFilter(is_of_others)
    try:
        yield
    except BaseException:
        for record in held:
            _logged.pop(getattr(record, _ONCE, ""), None)
        held.clear()
        raise
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_others)
        for record in held:
            logging.getLogger(record.name).handle(record)
