"""The command line of the schedule explorers, which plays a range of seeds and prints those that fail.

At the end the command prints how many runs reached each of the explorer's rare branches (rare_branches.py). With
`--require-branches` it fails if no run has reached one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import traceback
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple

from tests.branch_counter import (
    Branch,
    BranchCounts,
    counted_branches,
    insert_counters,
    report_counts,
    take_reached,
)

RUNS_PER_LINE = 1_000
"""Number of runs after which the command prints its progress."""

Explore = Callable[[int], None]
"""Plays the schedule of a seed. Raises if an invariant is violated."""


class SeedResult(NamedTuple):
    has_passed: bool
    reached: set[str]
    """Names of the rare branches that the run has reached."""


def run_command(explore: Explore, branches: Sequence[Branch], description: str | None) -> int:
    """Parse the command line, explore its seeds, and return the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seed_arguments(parser)
    return explore_seeds(explore, branches, parser.parse_args())


def add_seed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", default="0:1000", metavar="FROM:TO", help="play these seeds (default: 0:1000)")
    parser.add_argument("--seed", type=int, help="replay one seed, and print its error")
    parser.add_argument("--processes", type=int, default=1, help="number of processes that play seeds")
    parser.add_argument(
        "--require-branches", action="store_true", help="fail if no run reaches one of the explorer's rare branches"
    )


def explore_seeds(explore: Explore, branches: Sequence[Branch], options: argparse.Namespace) -> int:
    """Explore the seeds of the options, print those that fail, and return the exit status."""
    logging.disable(logging.NOTSET if options.seed is not None else logging.CRITICAL)
    start, stop = (options.seed, options.seed + 1) if options.seed is not None else map(int, options.seeds.split(":"))
    play = partial(_play_seed, explore, print_error=options.seed is not None)
    failed: list[int] = []
    counts = BranchCounts(branches)
    with contextlib.closing(_play_seeds(play, range(start, stop), branches, options.processes)) as results:
        for seed, result in enumerate(results, start):
            if not result.has_passed:
                failed.append(seed)
            counts.add_run(result.reached)
            if (seed + 1) % RUNS_PER_LINE == 0 or seed + 1 == stop:
                print(f"{seed + 1 - start} runs, {len(failed)} failed: {failed[:20]}", flush=True)
    are_reached = report_counts(counts, required=options.require_branches)
    return 1 if failed or not are_reached else 0


def _play_seeds(
    play: Callable[[int], SeedResult], seeds: range, branches: Sequence[Branch], processes: int
) -> Generator[SeedResult, None, None]:
    if processes > 1:
        with multiprocessing.Pool(processes, insert_counters, [branches]) as pool:
            yield from pool.imap(play, seeds, chunksize=20)
    else:
        with counted_branches(branches):
            yield from map(play, seeds)


def _play_seed(explore: Explore, seed: int, *, print_error: bool) -> SeedResult:
    try:
        explore(seed)
    except Exception:
        print(f"seed {seed} fails", flush=True)
        if print_error:
            traceback.print_exc()
        return SeedResult(has_passed=False, reached=take_reached())
    return SeedResult(has_passed=True, reached=take_reached())
