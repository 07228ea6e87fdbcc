"""Simulated processes: each actor of a simulation sees the package as if it ran in a Python process of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from spark_kafka_sink.client import metadata, network_client
from spark_kafka_sink.exactly_once import clients, decision_log, driver_ids, query_transactions
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.requests import blocking as blocking_client
from tests.exactly_once.scheduler import Actor

if TYPE_CHECKING:
    from tests.exactly_once.simulation import Simulation

_PROCESS_STATE: dict[tuple[Any, str], Callable[[], object]] = {
    (clients, "IDLE_DRIVER_CLIENTS"): clients.create_client_cache,
    (clients, "CLIENT_IDLE_SECONDS"): lambda: float("inf"),  # no thread that closes idle clients
    (decision_log, "_partition_cache"): dict,
    **{(decision_log, name): set for name in ("_checked_topics", "_warned_records")},
    (driver_ids, "_remembered_numbers"): dict,
}
"""Module attributes that each simulated process has for itself, with the factories of their initial values."""


class ProcessStates:
    """The module attributes of _PROCESS_STATE, with the values of each simulated process."""

    def __init__(self) -> None:
        self.process_by_actor: dict[str, str] = {}
        """Name of the process of an actor. Actors that are missing here have their own process."""
        self._values: dict[str, dict[tuple[Any, str], Any]] = {}
        self._current_process = ""

    def switch_to(self, actor: Actor) -> None:
        """Set the module attributes to the values of the actor's process."""
        process = self.process_by_actor.get(actor.name, actor.name)
        if process == self._current_process:
            return
        self._values[self._current_process] = {attribute: getattr(*attribute) for attribute in _PROCESS_STATE}
        values = self._values.get(process)
        for (module, name), create in _PROCESS_STATE.items():
            setattr(module, name, create() if values is None else values[module, name])
        self._current_process = process


@contextmanager
def isolated_processes(simulation: Simulation) -> Iterator[None]:
    """Isolate the simulated processes from each other and from the test, while `simulation.scheduler` runs.

    Code that creates an OperatingSystem receives the System of the current actor, and modules start with new state. The
    random choices of clients, such as backoffs, are the same in each run.
    """

    def current_system() -> object:
        assert simulation.scheduler.current is not None
        return simulation.scheduler.current.system

    previous_state = {attribute: getattr(*attribute) for attribute in _PROCESS_STATE}
    logger = logging.getLogger("spark_kafka_sink")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            patch.object(blocking_client, "OperatingSystem", current_system),
            patch.object(network_client, "Random", partial(Random, 0)),
            patch.object(metadata, "Random", partial(Random, 0)),
            patch.object(driver_module, "HAND_OVER_EPOCH", simulation.hand_over_epoch),
            patch.object(query_transactions, "HAND_OVER_EPOCH", simulation.hand_over_epoch),
            simulation.log_read_faults.applied(),
        ):
            for (module, name), create in _PROCESS_STATE.items():
                setattr(module, name, create())
            yield
    finally:
        logger.setLevel(level)
        for (module, name), value in previous_state.items():
            setattr(module, name, value)


def run_isolated(simulation: Simulation) -> None:
    """Run all actors of the simulation without switches between them."""
    with isolated_processes(simulation):
        simulation.scheduler.run()
