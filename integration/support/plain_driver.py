"""A driver of exactly once without Spark, in a process of its own, which a test stops and lets go on:

    python -m integration.support.plain_driver BOOTSTRAP TOPIC FOLDER NAME

It writes batch after batch, two tasks each, until there is a file `stop` in the folder. A batch that is committed is
noted in `commits`, as Spark does it; each attempt is noted in `attempts` before it is committed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from integration.support.driver_process import newest
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import BOTH_TASKS, Query

REFUSED = 3
"""The exit status when Kafka or exactly once has refused something."""


@dataclass
class Brokers:
    """A real Kafka with the interface that the tests on the embedded broker use."""

    bootstrap_servers: str


def value_of(number: int, partition: int, name: str) -> str:
    return f"{number}/{partition}/{name}"


def main() -> int:
    bootstrap, topic, folder, name = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    brokers = cast(EmbeddedBroker, Brokers(bootstrap))
    query = Query(brokers, prefix=topic, data=topic, query=f"query-of-{topic}", name=name)
    number = newest(folder / "commits") + 1
    while not (folder / "stop").exists():
        try:
            run(query, number, folder)
        except KafkaSinkError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return REFUSED
        (folder / "commits" / str(number)).touch()
        number += 1
    return 0


def run(query: Query, number: int, folder: Path) -> None:
    start = query.begin()
    if start.is_committed(query.batch(number)):
        start.check_passed_over(query.batch(number), BOTH_TASKS, tolerant=False)
        return
    try:
        written = [query.write(start, each, value_of(number, each, query.name)) for each in range(2)]
        (folder / "attempts" / f"{number} {query.name}").touch()
        query.commit(start, number, written)
    except KafkaSinkError:
        query.abort(start, number)
        raise


if __name__ == "__main__":
    sys.exit(main())
