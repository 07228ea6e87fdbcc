from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.exactly_once.transaction_names import (
    GENERATIONS,
    TaskName,
    checked_prefix,
    checkpoint_name,
    driver_id,
    driver_number,
    prefix_of,
    task_id,
    task_of,
)


def test_an_id_is_that_of_its_task_and_of_no_other_prefix() -> None:
    name = task_id("a-1", TaskName(3, 12, 1))
    assert name == "a-1-3-12-1"
    assert task_of("a-1", name) == (3, 12, 1)
    assert [task_of(other, name) for other in ("a", "a-1-3", "b", "a-")] == [None] * 4
    assert task_of("a-1", driver_id("a-1")) is None


@pytest.mark.parametrize("number", [1, 2, 10, 999_999_999])
def test_an_id_of_a_driver_has_its_number(number: int) -> None:
    assert driver_number("p-1", driver_id("p-1", number)) == number
    assert task_of("p-1", driver_id("p-1", number)) is None
    assert driver_number("p", driver_id("p-1", number)) is None


def test_another_id_has_no_number_of_a_driver() -> None:
    others = ("p", "p-driver-", "p-driver-0", "p-driver-1", "p-driver-02", "p-driver-x", "p-driver-2-driver", "p-1-0-0")
    assert [driver_number("p", name) for name in others] == [None] * len(others)


def test_ids_come_again_after_some_generations() -> None:
    ids = {task_id("p", TaskName(generation, 0, 0)) for generation in range(100)}
    assert len(ids) == GENERATIONS


def test_a_prefix_is_the_same_for_the_same_and_another_for_another() -> None:
    assert prefix_of("stream", "/a") == prefix_of("stream", "/a")
    assert len({prefix_of(kind, identity) for kind in ("stream", "key") for identity in ("/a", "/b")}) == 4


@pytest.mark.parametrize("location", ["/a/b", "/a/b/", "/a//b", "file:/a/b", "file:///a/b", " /a/b "])
def test_a_checkpoint_has_one_name_however_it_is_written(location: str) -> None:
    assert checkpoint_name(location) == "/a/b"


@pytest.mark.parametrize("location", ["s3://bucket/a", "hdfs://node:8020/a"])
@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_checkpoint_elsewhere_keeps_its_name(location: str, slashes: str) -> None:
    assert checkpoint_name(f"{location}/") == location
    assert checkpoint_name(f"{location}{slashes}b") == f"{location}/b"


def test_a_checkpoint_of_a_file_system_without_hosts_has_one_name() -> None:
    assert {checkpoint_name(f"dbfs:{slashes}a/b") for slashes in ("/", "///")} == {"dbfs:/a/b"}


def test_credentials_in_a_checkpoints_location_are_not_part_of_its_name() -> None:
    assert checkpoint_name("s3a://key:secret@bucket/a") == "s3a://bucket/a"
    assert checkpoint_name("/a:b/b@c") == "/a:b/b@c"


def test_the_container_of_an_azure_account_is_part_of_a_checkpoints_name() -> None:
    """Two containers of one account are two places."""
    ones, others = ("abfss://" + container + "@account.dfs.core.windows.net/a" for container in ("ones", "others"))
    assert (checkpoint_name(ones), checkpoint_name(others)) == (ones, others)


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", "x" * 201, "ä"])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="is no prefix for transactional ids"):
        checked_prefix(prefix)


def test_a_prefix_that_can_be_one_is_taken() -> None:
    assert checked_prefix("My.query_1-a") == "My.query_1-a"
