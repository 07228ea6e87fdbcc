"""Lookups of host names on background threads.

The operating system's resolver cannot be interrupted. It blocks until its DNS servers respond or it gives up, which
often takes 10 seconds or more. On the sender thread, a lookup would hold up the requests to all brokers, timeouts and
close(). docs/decisions/0020-host-lookups.md compares the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import SocketAddress, System, find_host_error, is_ip_address

ResultT = TypeVar("ResultT")


def resolve_advertised(system: System, host: str, port: int) -> list[SocketAddress]:
    """Resolve an advertised host name. Raise DisconnectedError for an invalid name before DNS or TLS sees it."""
    _check_advertised_host(host)
    return system.resolve(host, port)


class BackgroundLookup(Generic[ResultT]):
    """A lookup that runs on its own thread. The thread ends with the lookup."""

    def __init__(self, system: System, look_up: Callable[[], ResultT], on_finish: Callable[[], None]) -> None:
        """Start the lookup.

        `on_finish`: called on the lookup's thread, unless the lookup ends before the constructor returns.
        """
        self.is_finished = False
        self._should_notify = False
        self._look_up = look_up
        self._on_finish = on_finish
        self._outcome: ResultT | DisconnectedError = DisconnectedError("the name lookup ended unexpectedly")
        system.run_in_background(self._run, "pykafka-lookup")
        # The order matters. This thread sets `_should_notify` and then the caller reads `is_finished`; `_run` sets
        # `is_finished` and then reads `_should_notify`. Whichever comes second sees the flag that the other has set, so
        # the end of the lookup is never missed.
        self._should_notify = True

    def result(self) -> ResultT:
        """Return the result of the finished lookup. Raise DisconnectedError if the name cannot be resolved."""
        if isinstance(self._outcome, DisconnectedError):
            raise self._outcome
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = self._look_up()
        except DisconnectedError as error:
            self._outcome = error
        finally:
            self.is_finished = True
            if self._should_notify:
                self._on_finish()


class HostLookups:
    """Unfinished DNS lookups of broker host names. Only the sender thread may use them.

    While a lookup is running, further connection attempts to the same host share it.
    """

    def __init__(self, system: System, on_finish: Callable[[], None]) -> None:
        self._system = system
        self._on_finish = on_finish
        self._unfinished_lookups: dict[tuple[str, int], BackgroundLookup[list[SocketAddress]]] = {}

    def resolve(self, host: str, port: int) -> list[SocketAddress] | None:
        """Return a host's addresses. If the lookup is still running, return None; `take_finished` returns it later.

        Raise DisconnectedError if the name cannot be resolved. An IP address needs no lookup.
        """
        if (host, port) in self._unfinished_lookups:
            return None
        _check_advertised_host(host)
        if is_ip_address(host):
            return self._system.resolve(host, port)
        resolve_host = partial(self._system.resolve, host, port)
        lookup = BackgroundLookup(self._system, resolve_host, self._on_finish)
        if lookup.is_finished:
            return lookup.result()
        self._unfinished_lookups[host, port] = lookup
        return None

    def take_finished(self) -> dict[tuple[str, int], BackgroundLookup[list[SocketAddress]]]:
        """Remove and return the lookups that have finished, by host and port."""
        finished_lookups = {key: lookup for key, lookup in self._unfinished_lookups.items() if lookup.is_finished}
        for key in finished_lookups:
            del self._unfinished_lookups[key]
        return finished_lookups


def _check_advertised_host(host: str) -> None:
    """Raise DisconnectedError if the name is not a valid host name."""
    problem = find_host_error(host)
    if problem is not None:
        raise DisconnectedError(
            f"{sanitize(host)!r} is not a valid host name: {problem}. A broker advertises it: correct its "
            "advertised.listeners"
        )
