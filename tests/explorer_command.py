"""The command of the schedule explorers: plays the schedules of a range of seeds, and prints the seeds that fail."""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import traceback
from collections.abc import Callable, Iterable
from functools import partial

RUNS_PER_LINE = 1_000
"""Number of runs after which the command prints its progress."""

Explore = Callable[[int], None]
"""Plays the schedule of a seed. Raises if an invariant is violated."""


def run_command(explore: Explore, description: str | None) -> int:
    """Parse the command line, explore its seeds, and return the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seed_arguments(parser)
    return explore_seeds(explore, parser.parse_args())


def add_seed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", default="0:1000", metavar="FROM:TO", help="play these seeds (default: 0:1000)")
    parser.add_argument("--seed", type=int, help="replay one seed, and print its error")
    parser.add_argument("--processes", type=int, default=1, help="number of processes that play seeds")


def explore_seeds(explore: Explore, options: argparse.Namespace) -> int:
    """Explore the seeds of the options, print those that fail, and return the exit status."""
    logging.disable(logging.NOTSET if options.seed is not None else logging.CRITICAL)
    start, stop = (options.seed, options.seed + 1) if options.seed is not None else map(int, options.seeds.split(":"))
    passes = partial(_passes, explore, print_error=options.seed is not None)
    failed: list[int] = []
    with contextlib.ExitStack() as stack:
        results: Iterable[bool] = map(passes, range(start, stop))
        if options.processes > 1:
            pool = stack.enter_context(multiprocessing.Pool(options.processes))
            results = pool.imap(passes, range(start, stop), chunksize=20)
        for seed, has_passed in enumerate(results, start):
            if not has_passed:
                failed.append(seed)
            if (seed + 1) % RUNS_PER_LINE == 0 or seed + 1 == stop:
                print(f"{seed + 1 - start} runs, {len(failed)} failed: {failed[:20]}", flush=True)
    return 1 if failed else 0


def _passes(explore: Explore, seed: int, *, print_error: bool) -> bool:
    try:
        explore(seed)
    except Exception:
        print(f"seed {seed} fails", flush=True)
        if print_error:
            traceback.print_exc()
        return False
    return True
