"""The rows that the benchmarks write.

real    JSON values of 60 to 140 bytes and keys of 1 to 7 digits, like `to_json(struct(*))` and `CAST(id AS STRING)`
even    values of 100 bytes and keys of 12 bytes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pyarrow as pa

Rows = tuple[pa.Array, pa.Array]
"""Keys and values."""


def build_real_rows(rows: int) -> Rows:
    rng = Random(7)
    ids = [int(10 ** (7 * rng.random())) for _ in range(rows)]
    return pa.array([b"%d" % row_id for row_id in ids], pa.binary()), pa.array(
        [_build_json(row_id, rng) for row_id in ids]
    )


def build_even_rows(rows: int) -> Rows:
    letters = np.random.default_rng(7).integers(97, 123, (rows, 100), np.uint8)
    letters[:, ::2] = 120  # every second byte repeats, so that compression has something to find
    keys = [b"%012d" % (row * 7919 % 1_000_003) for row in range(rows)]
    return pa.array(keys, pa.binary()), pa.array([bytes(row) for row in letters], pa.binary())


def _build_json(number: int, rng: Random) -> bytes:
    """Build a JSON value of 60 to 140 bytes."""
    fields = {"id": number, "amount": round(1_000 * rng.random(), 2), "paid": rng.random() < 0.5}
    rest = rng.randrange(60, 141) - len(json.dumps({**fields, "note": ""}))
    note = "".join(rng.choices("etaoin shrdlu", k=max(0, rest)))
    return json.dumps({**fields, "note": note}).encode()


SHAPES: Mapping[str, Callable[[int], Rows]] = {"real": build_real_rows, "even": build_even_rows}
