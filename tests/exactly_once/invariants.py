"""The invariants of exactly-once delivery, which the explorer checks after all actors have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once.transaction_names import parse_driver_number
from spark_kafka_sink.requests.verdicts import BATCH_OWNERSHIP_LOST_ERRORS
from tests.exactly_once.lives import LAST, PREFIX, TASKS, TIMEOUT_MS, TOPIC, Replay, World
from tests.history import History, Outcome, Write


def a_decided_batch_is_seen_once_and_whole_and_an_undecided_one_never(world: World) -> None:
    decided = world.decided()
    in_a_decision = {identity for every in decided.values() for ids in every for identity in ids}
    history = History()
    for each in world.attempts:
        outcome = Outcome.COMMITTED if each.identity in in_a_decision else Outcome.OPEN
        unit = f"task {each.partition} of batch {each.number}"
        writer = f"task {each.partition} in batch {each.number}"
        history.writes.append(Write(each.name, each.values, outcome, unit, f"batch {each.number}", writer))
    for number in range(world.batches):
        units = frozenset(f"task {partition} of batch {number}" for partition in range(TASKS))
        history.units[f"batch {number}"] = units
    seen = {
        partition: [value or b"" for value in world.cluster.values(TOPIC, partition, committed=True)]
        for partition in range(TASKS)
    }
    history.check(seen)
    for number in range(world.batches):
        assert decided.get(number), f"batch {number} was never decided"
        assert len(decided[number]) == 1, f"batch {number} was decided anew: {decided[number]}"


def no_older_driver_changes_anything_after_a_newer_one_has_begun(world: World) -> None:
    generations = [entry.generation for entry in world.decisions()]
    assert generations == sorted(generations), f"the log goes back to an older driver: {generations}"
    if not world.registered:
        return  # each batch has a driver of its own: who began first may be the newer one
    drivers_of = {each.identity: each.driver for each in world.attempts}
    in_a_decision = {identity for every in world.decided().values() for ids in every for identity in ids}
    for end in world.ends:
        owner = drivers_of.get(end.identity)
        if owner is None or end.by not in world.began or owner not in world.began:
            continue
        is_older = world.began.index(end.by) < world.began.index(owner)
        allowed = end.commit and end.identity in in_a_decision
        assert not is_older or allowed, f"{end.by} has ended {end.identity} of {owner}, which is newer"


def current_driver_does_not_give_way(world: World) -> None:
    """Brokers abort what a newer driver has open for an older one that asks. Who has the last word in the log is not
    stopped by that. So of the living one drives.

    Not if a driver died, or gave up before it had claimed: it may have fenced another, whose tasks say then that they
    come too late. Nor if Spark has stopped the query.
    """
    if world.stage.has_killed or world.stopped:
        return
    entries = [entry for entry in world.decisions() if entry.driver_name != LAST]
    driver = world.whose(entries[-1]) if entries else ""
    error = world.failed.get(driver)
    gave_way = error is not None and any(words in str(error) for words in ("newer driver", "has given way"))
    known = {world.whose(entry) for entry in entries}
    if "came too late" in str(error) and any(name not in known for name in {*world.failed, *world.in_vain}):
        return
    assert not gave_way, f"{driver} has the last word in the log, and has given way: {error}"


def fenced_attempts_report_newer_driver(world: World) -> None:
    """In words of exactly once, not in those of brokers, which are the reason at most.

    An attempt may also be fenced by one of its number that stood still before it asked for its id: then its driver
    waits, and what brokers say is all that is known.
    """
    of_brokers = {id(each.error) for each in world.attempts if not each.overtaken}
    errors = [*world.failed.values(), *(each.error for each in world.attempts if each.error is not None)]
    for error in (each for each in errors if id(each) not in of_brokers):
        reasons = [
            each
            for each in _causes(error)
            if isinstance(each, BrokerError) and each.code in BATCH_OWNERSHIP_LOST_ERRORS
        ]
        assert not reasons or isinstance(error, ExactlyOnceError), f"{error!r}, since {reasons}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def skipped_batches_are_decided(world: World) -> None:
    decided = world.decided()
    for each in world.attempts:
        assert not each.passed_over or each.number in decided, f"{each.name} was passed over, and was never decided"
    for driver, number in world.committed:
        assert number in decided, f"{driver} says that batch {number} is committed, and it was never decided"
    contents = {entry.batch.batch_id: entry.content for entry in world.decisions() if entry.content is not None}
    for driver, number, counted in world.passed_over:
        was = contents[number]
        assert world.is_tolerant(driver) or was.has_same_row_counts(counted), (
            f"{driver} passed over {counted}; decided was {was}"
        )
    for driver, error in world.failed.items():
        is_mismatch = "but with other rows" in str(error)
        assert not is_mismatch or world.replay is Replay.FAILS, f"{driver} fails, and its rows are the same: {error}"


def nothing_stays_open(world: World) -> None:
    """Of tasks, that is: no reader waits for a driver's own transactions, which are in the log alone.

    In version 1 a request to add partitions that is carried out again after the end opens a transaction without rows
    under the same epoch. The next driver aborts it, or else its timeout does. So it is with a late attempt, if another
    driver or a person has asked for an epoch so late that brokers answered with that of the attempt's own driver: the
    id looks as if nothing had been decided under it, and the attempt begins.
    """
    version = world.cluster.core.coordinator.version
    if world.lateness.additions or (version == 1 and world.lateness.shared_epochs):
        world.system.advance(TIMEOUT_MS)
        world.lateness.write_markers()
    for partition in range(TASKS):
        log = world.cluster.log(TOPIC, partition)
        assert log.last_stable_offset == log.log_end_offset, f"partition {partition}: a transaction is left open"
    known = world.cluster.core.coordinator.transactions.values()
    of_tasks = [each for each in known if parse_driver_number(PREFIX, each.transactional_id) is None]
    still = [each for each in of_tasks if each.state.value == "Ongoing"]
    assert not still, f"open: {still}"
    assert not world.system.open_sockets, "a socket is left"


def the_next_start_works(world: World) -> None:
    assert LAST not in world.failed, f"the last start fails: {world.failed[LAST]}"
    assert world.checkpoint == world.batches


INVARIANTS: tuple[Callable[[World], None], ...] = (
    no_older_driver_changes_anything_after_a_newer_one_has_begun,
    current_driver_does_not_give_way,
    fenced_attempts_report_newer_driver,
    skipped_batches_are_decided,
    the_next_start_works,
    a_decided_batch_is_seen_once_and_whole_and_an_undecided_one_never,
    nothing_stays_open,
)


def check(world: World) -> None:
    for invariant in INVARIANTS:
        invariant(world)
