"""The counters of rare branches, the tables of branches, and `--require-branches`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.exactly_once import commit_errors
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.producer.sending import outcome
from spark_kafka_sink.producer.sending.outcome import BatchFacts
from spark_kafka_sink.protocol import error_codes as codes
from tests.branch_counter import Branch, BranchCounts, MarkerNotFoundError, counted_branches, take_reached
from tests.explorer_command import explore_seeds
from tests.rare_branches import EXACTLY_ONCE_BRANCHES, PRODUCER_BRANCHES, TRANSACTION_BRANCHES

TABLES = (EXACTLY_ONCE_BRANCHES, PRODUCER_BRANCHES, TRANSACTION_BRANCHES)
DECIDE_OUTCOME = "producer.sending.outcome:decide_outcome"
SPLIT = Branch("a batch is split", DECIDE_OUTCOME, "return Split()")
EXPIRED = Branch("a batch has expired", DECIDE_OUTCOME, "if facts.is_expired:")
NOT_EXPIRED = Branch("a batch has not expired", DECIDE_OUTCOME, "not facts.is_expired")
LOGGED = Branch(
    "an error is logged", "exactly_once.commit_errors:log_errors_after_commit", "except KafkaSinkError as error:"
)
FACTS = BatchFacts(
    record_count=2,
    failed_attempts=1,
    max_retries=3,
    is_expired=False,
    has_sequence=True,
    is_head=True,
    is_in_doubt=False,
)


def reject_batch(code: int = codes.MESSAGE_TOO_LARGE, *, expired: bool = False) -> None:
    """Decide the outcome of a batch that a broker has rejected."""
    outcome.decide_outcome(FACTS._replace(is_expired=expired), code)


def fail() -> None:
    raise KafkaSinkError("a broker failed")


def test_records_branch_when_its_statement_is_executed() -> None:
    with counted_branches([SPLIT]):
        reject_batch(codes.NOT_LEADER_OR_FOLLOWER)
        assert take_reached() == set()
        reject_batch()
        assert take_reached() == {SPLIT.name}
        assert take_reached() == set()


def test_records_branch_when_its_expression_is_true() -> None:
    with counted_branches([NOT_EXPIRED]):
        reject_batch(expired=True)
        assert take_reached() == set()
        reject_batch()
        assert take_reached() == {NOT_EXPIRED.name}


def test_records_branch_when_its_block_is_entered() -> None:
    with counted_branches([EXPIRED]):
        reject_batch(codes.NOT_LEADER_OR_FOLLOWER)
        assert take_reached() == set()
        reject_batch(codes.NOT_LEADER_OR_FOLLOWER, expired=True)
        assert take_reached() == {EXPIRED.name}


def test_records_branch_of_decorated_function() -> None:
    with counted_branches([LOGGED]):
        with commit_errors.log_errors_after_commit(Entry("p"), "something else failed"):
            fail()
        assert take_reached() == {LOGGED.name}


def test_records_branch_whose_marker_is_within_another_one() -> None:
    text = "if code == codes.MESSAGE_TOO_LARGE and facts.record_count > 1 and (not facts.is_expired):"
    too_large = Branch("a batch is too large", DECIDE_OUTCOME, text)
    with counted_branches([NOT_EXPIRED, too_large]):
        reject_batch()
        assert take_reached() == {NOT_EXPIRED.name, too_large.name}


def test_restores_functions_and_forgets_branches() -> None:
    original = outcome.decide_outcome.__code__
    with counted_branches([SPLIT, EXPIRED]):
        assert outcome.decide_outcome.__code__ is not original
        reject_batch()
    assert outcome.decide_outcome.__code__ is original
    assert take_reached() == set()


@pytest.mark.parametrize("text", ["return Splice()", "outcome"], ids=["missing", "ambiguous"])
def test_reports_branch_whose_marker_is_not_unique(text: str) -> None:
    with (
        pytest.raises(MarkerNotFoundError, match=r"'a batch is split': \d places in producer.sending.outcome"),
        counted_branches([Branch(SPLIT.name, DECIDE_OUTCOME, text)]),
    ):
        pass


@pytest.mark.parametrize("branch", dict.fromkeys(chain(*TABLES)), ids=lambda branch: branch.name)
def test_code_has_marker_of_branch(branch: Branch) -> None:
    with counted_branches([branch]):
        pass


@pytest.mark.parametrize("branches", TABLES)
def test_branches_of_table_have_different_names_and_markers(branches: tuple[Branch, ...]) -> None:
    assert len({branch.name for branch in branches}) == len(branches)
    assert len({(branch.function, branch.text) for branch in branches}) == len(branches)


def test_counts_runs_that_reached_each_branch() -> None:
    counts, others = BranchCounts([SPLIT, EXPIRED]), BranchCounts([SPLIT, EXPIRED])
    counts.add_run([SPLIT.name])
    others.add_run([SPLIT.name])
    counts.add(others)
    assert str(counts).splitlines()[1:] == ["       2  a batch is split", "       0  a batch has expired"]
    assert counts.find_unreached() == [EXPIRED.name]


# --- the command of the explorers


@pytest.fixture(autouse=True)
def enabled_logging() -> Iterator[None]:
    """Re-enable logging, which the command disables."""
    yield
    logging.disable(logging.NOTSET)


def split_odd_seeds(seed: int) -> None:
    reject_batch(expired=seed % 2 == 0)


def expire_all_seeds(seed: int) -> None:
    reject_batch(expired=True)


def explore(
    play_seed: Callable[[int], None], *, processes: int = 1, require_branches: bool = True, seeds: str = "0:50"
) -> int:
    options = argparse.Namespace(seeds=seeds, seed=None, processes=processes, require_branches=require_branches)
    return explore_seeds(play_seed, [SPLIT], options)


@pytest.mark.parametrize("processes", [1, 2])
def test_explorer_prints_number_of_runs_that_reached_branch(processes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert explore(split_odd_seeds, processes=processes) == 0
    assert "      25  a batch is split" in capsys.readouterr().out


@pytest.mark.parametrize("processes", [1, 2])
def test_explorer_fails_if_no_run_reaches_required_branch(processes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert explore(expire_all_seeds, processes=processes) == 1
    assert "not reached by any run: a batch is split" in capsys.readouterr().out
    assert explore(expire_all_seeds, processes=processes, require_branches=False) == 0
