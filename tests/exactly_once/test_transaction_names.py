from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.exactly_once.transaction_names import (
    GENERATIONS,
    TaskAttempt,
    derive_prefix,
    driver_id,
    normalize_checkpoint,
    parse_driver_number,
    parse_task_attempt,
    task_id,
    validate_prefix,
)


def test_an_id_is_that_of_its_task_and_of_no_other_prefix() -> None:
    name = task_id("a-1", TaskAttempt(3, 12, 1))
    assert name == "a-1-3-12-1"
    assert parse_task_attempt("a-1", name) == (3, 12, 1)
    assert [parse_task_attempt(other, name) for other in ("a", "a-1-3", "b", "a-")] == [None] * 4
    assert parse_task_attempt("a-1", driver_id("a-1")) is None


@pytest.mark.parametrize("number", [1, 2, 10, 999_999_999])
def test_an_id_of_a_driver_has_its_number(number: int) -> None:
    assert parse_driver_number("p-1", driver_id("p-1", number)) == number
    assert parse_task_attempt("p-1", driver_id("p-1", number)) is None
    assert parse_driver_number("p", driver_id("p-1", number)) is None


def test_another_id_has_no_number_of_a_driver() -> None:
    others = ("p", "p-driver-", "p-driver-0", "p-driver-1", "p-driver-02", "p-driver-x", "p-driver-2-driver", "p-1-0-0")
    assert [parse_driver_number("p", name) for name in others] == [None] * len(others)


def test_ids_come_again_after_some_generations() -> None:
    ids = {task_id("p", TaskAttempt(generation, 0, 0)) for generation in range(100)}
    assert len(ids) == GENERATIONS


def test_a_prefix_is_the_same_for_the_same_and_another_for_another() -> None:
    assert derive_prefix("stream", "/a") == derive_prefix("stream", "/a")
    assert len({derive_prefix(kind, identity) for kind in ("stream", "key") for identity in ("/a", "/b")}) == 4


@pytest.mark.parametrize("location", ["/a/b", "/a/b/", "/a//b", "file:/a/b", "file:///a/b", " /a/b "])
def test_a_checkpoint_has_one_name_however_it_is_written(location: str) -> None:
    assert normalize_checkpoint(location) == "/a/b"


@pytest.mark.parametrize("location", ["s3://bucket/a", "hdfs://node:8020/a"])
@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_checkpoint_elsewhere_keeps_its_name(location: str, slashes: str) -> None:
    assert normalize_checkpoint(f"{location}/") == location
    assert normalize_checkpoint(f"{location}{slashes}b") == f"{location}/b"


def test_a_checkpoint_of_a_file_system_without_hosts_has_one_name() -> None:
    assert {normalize_checkpoint(f"dbfs:{slashes}a/b") for slashes in ("/", "///")} == {"dbfs:/a/b"}


def test_credentials_in_a_checkpoints_location_are_not_part_of_its_name() -> None:
    assert normalize_checkpoint("s3a://key:secret@bucket/a") == "s3a://bucket/a"
    assert normalize_checkpoint("/a:b/b@c") == "/a:b/b@c"


def test_the_container_of_an_azure_account_is_part_of_a_checkpoints_name() -> None:
    """Two containers of one account are two places."""
    ones, others = ("abfss://" + container + "@account.dfs.core.windows.net/a" for container in ("ones", "others"))
    assert (normalize_checkpoint(ones), normalize_checkpoint(others)) == (ones, others)


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", "x" * 201, "ä"])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid prefix for transactional ids"):
        validate_prefix(prefix)


def test_a_prefix_that_can_be_one_is_taken() -> None:
    assert validate_prefix("My.query_1-a") == "My.query_1-a"
