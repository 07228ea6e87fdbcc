"""Fuzzer for all decoders of foreign bytes: python -m tests.fuzz 1000000 [--seed 7]

Nine inputs out of ten are mutated valid inputs, the others are random bytes. For each input a decoder must return a
value or raise an exception that it documents, quickly and with little memory. The seed is printed; the same seed
generates the same inputs.
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
MAX_SECONDS_PER_INPUT = 2.0
HANG_TIMEOUT_SECONDS = 30.0
"""This limit and MAX_SECONDS_PER_INPUT are in CPU time, so that other load has no influence. Decoders never wait."""
MAX_MEMORY_GROWTH_BYTES = 512 << 20
MAX_RANDOM_BYTES = 96

_EXTREME_VALUES = [
    *(bytes([value]) for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)),
    *(value.to_bytes(size, "big", signed=True) for size in (2, 4, 8) for value in (-1, -2, 1 << (size * 8 - 2))),
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",  # the largest int32 as a varint
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 11,  # a varint that does not end
]


@dataclass(frozen=True)
class Target:
    """A decoder with valid inputs for it and the exceptions that it may raise."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Sequence[bytes]
    allowed: tuple[type[Exception], ...]


class FuzzFailure(AssertionError):
    """A decoder misbehaved. The message contains the input in hexadecimal."""


def generate_inputs(target: Target, randomness: random.Random) -> Iterator[bytes]:
    while True:
        if randomness.random() < 0.1:
            yield randomness.randbytes(randomness.randrange(MAX_RANDOM_BYTES))
        else:
            data = bytearray(randomness.choice(target.seeds))
            for _ in range(randomness.choice((1, 1, 1, 2, 4))):
                _mutate(data, randomness)
            yield bytes(data)


def _mutate(data: bytearray, randomness: random.Random) -> None:
    start = randomness.randrange(len(data) + 1)
    stop = min(len(data), start + randomness.choice((1, 1, 2, 4, 16)))
    mutation = randomness.randrange(6)
    if mutation == 0 and start < len(data):
        data[start] ^= 1 << randomness.randrange(8)
    elif mutation == 1:
        extreme = randomness.choice(_EXTREME_VALUES)
        data[start : start + len(extreme)] = extreme
    elif mutation == 2:
        del data[start:]
    elif mutation == 3:
        del data[start:stop]
    elif mutation == 4:
        data[start:start] = randomness.choice(_EXTREME_VALUES)
    else:
        data[start:start] = data[start:stop]


def run(targets: Sequence[Target], count: int, seed: int) -> Counter[str]:
    """Feed `count` inputs to the targets in turn, and return the number of inputs by outcome.

    Raise FuzzFailure if a decoder misbehaves.
    """
    randomness = random.Random(seed)
    outcomes: Counter[str] = Counter()
    initial_bytes = _max_memory_bytes()
    signal.signal(signal.SIGPROF, _raise_timeout)
    streams = [(target, generate_inputs(target, randomness)) for target in targets]
    for target, stream in islice(cycle(streams), count):
        outcomes[_decode(target, next(stream))] += 1
    growth_bytes = _max_memory_bytes() - initial_bytes
    if growth_bytes > MAX_MEMORY_GROWTH_BYTES:
        raise FuzzFailure(f"memory grew by {growth_bytes >> 20} MiB")
    return outcomes


def _decode(target: Target, data: bytes) -> str:
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, HANG_TIMEOUT_SECONDS)
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
    if seconds > MAX_SECONDS_PER_INPUT:
        raise FuzzFailure(f"{target.name} took {seconds:.1f} s for {data.hex()}")
    return outcome


def _raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError(f"no result within {HANG_TIMEOUT_SECONDS:.0f} s")


def _max_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    # Imported here, because the targets import this module.
    from tests.fuzz_targets import all_targets

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--only", default="", help="fuzz only decoders whose name contains this text")
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
