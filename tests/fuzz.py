"""Hostile bytes for every decoder: python -m tests.fuzz 1000000 [--seed 7]

Half of the inputs are valid ones that were mutated, the others are random. Each must end in a value or in the exception
that the decoder promises, soon, and without eating memory. The seed is printed: the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

DEFAULT_SEED = 20261121
SECONDS_PER_INPUT_MAX = 2.0
HUNG_AFTER_SECONDS = 30.0
"""Both of the processor's time, so that other work on the machine counts for nothing. Decoders wait for nothing."""
MEMORY_GROWTH_BYTES_MAX = 512 << 20
RANDOM_BYTES_MAX = 96

_EXTREMES = [
    *(bytes([value]) for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)),
    *(value.to_bytes(size, "big", signed=True) for size in (2, 4, 8) for value in (-1, -2, 1 << (size * 8 - 2))),
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",  # the largest int32 as a varint
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 11,  # a varint without an end
]


@dataclass(frozen=True)
class Target:
    """A decoder, valid inputs for it, and the exceptions that it may end in."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Sequence[bytes]
    allowed: tuple[type[Exception], ...]


class FuzzFailure(AssertionError):
    """A decoder broke its promise. The words have the input as hex."""


def inputs(target: Target, randomness: random.Random) -> Iterator[bytes]:
    while True:
        if randomness.random() < 0.1:
            yield randomness.randbytes(randomness.randrange(RANDOM_BYTES_MAX))
        else:
            data = bytearray(randomness.choice(target.seeds))
            for _ in range(randomness.choice((1, 1, 1, 2, 4))):
                _mutate(data, randomness)
            yield bytes(data)


def _mutate(data: bytearray, randomness: random.Random) -> None:
    start = randomness.randrange(len(data) + 1)
    stop = min(len(data), start + randomness.choice((1, 1, 2, 4, 16)))
    kind = randomness.randrange(6)
    if kind == 0 and start < len(data):
        data[start] ^= 1 << randomness.randrange(8)
    elif kind == 1:
        extreme = randomness.choice(_EXTREMES)
        data[start : start + len(extreme)] = extreme
    elif kind == 2:
        del data[start:]
    elif kind == 3:
        del data[start:stop]
    elif kind == 4:
        data[start:start] = randomness.choice(_EXTREMES)
    else:
        data[start:start] = data[start:stop]


def run(targets: Sequence[Target], count: int, seed: int) -> Counter[str]:
    """Feeds `count` inputs to the targets in turn; FuzzFailure at the first broken promise."""
    randomness = random.Random(seed)
    outcomes: Counter[str] = Counter()
    before = _memory_bytes()
    signal.signal(signal.SIGPROF, _hung)
    streams = [(target, inputs(target, randomness)) for target in targets]
    for target, stream in islice(cycle(streams), count):
        outcomes[_one(target, next(stream))] += 1
    grown = _memory_bytes() - before
    if grown > MEMORY_GROWTH_BYTES_MAX:
        raise FuzzFailure(f"memory grew by {grown >> 20} MiB")
    return outcomes


def _one(target: Target, data: bytes) -> str:
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, HUNG_AFTER_SECONDS)
    try:
        target.decode(data)
        outcome = "value"
    except target.allowed as error:
        outcome = type(error).__name__
    except BaseException as error:
        raise FuzzFailure(f"{target.name} raised {type(error).__name__} ({error}) for {data.hex()}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - started
    if seconds > SECONDS_PER_INPUT_MAX:
        raise FuzzFailure(f"{target.name} took {seconds:.1f} s for {data.hex()}")
    return outcome


def _hung(number: int, frame: object) -> None:
    raise TimeoutError(f"no answer within {HUNG_AFTER_SECONDS:.0f} s")


def _memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    # Imported here, because the targets are made of this module's classes.
    from tests.fuzz_targets import all_targets

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    arguments = parser.parse_args()
    targets = [target for target in all_targets() if arguments.only in target.name]
    print(f"{arguments.count} inputs for {len(targets)} decoders, seed {arguments.seed}", flush=True)
    started = time.perf_counter()
    outcomes = run(targets, arguments.count, arguments.seed)
    seconds = time.perf_counter() - started
    summary = ", ".join(f"{number} {name}" for name, number in outcomes.most_common())
    print(f"done in {seconds:.0f} s: {summary}")


if __name__ == "__main__":
    main()
