from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.exactly_once.transaction_names import (
    GENERATION_COUNT,
    TaskAttempt,
    build_driver_id,
    build_task_id,
    derive_prefix,
    normalize_checkpoint,
    parse_driver_number,
    parse_task_attempt,
    validate_prefix,
)


def test_task_id_belongs_to_its_task_and_prefix_only() -> None:
    name = build_task_id("a-1", TaskAttempt(3, 12, 1))
    assert name == "a-1-3-12-1"
    assert parse_task_attempt("a-1", name) == (3, 12, 1)
    assert [parse_task_attempt(other, name) for other in ("a", "a-1-3", "b", "a-")] == [None] * 4
    assert parse_task_attempt("a-1", build_driver_id("a-1")) is None


@pytest.mark.parametrize("number", [1, 2, 10, 999_999_999])
def test_parses_number_of_driver_id(number: int) -> None:
    assert parse_driver_number("p-1", build_driver_id("p-1", number)) == number
    assert parse_task_attempt("p-1", build_driver_id("p-1", number)) is None
    assert parse_driver_number("p", build_driver_id("p-1", number)) is None


def test_other_ids_have_no_driver_number() -> None:
    others = ("p", "p-driver-", "p-driver-0", "p-driver-1", "p-driver-02", "p-driver-x", "p-driver-2-driver", "p-1-0-0")
    assert [parse_driver_number("p", name) for name in others] == [None] * len(others)


def test_task_ids_repeat_after_some_generations() -> None:
    ids = {build_task_id("p", TaskAttempt(generation, 0, 0)) for generation in range(100)}
    assert len(ids) == GENERATION_COUNT


def test_derives_equal_prefixes_from_equal_identities_only() -> None:
    assert derive_prefix("stream", "/a") == derive_prefix("stream", "/a")
    assert len({derive_prefix(kind, identity) for kind in ("stream", "key") for identity in ("/a", "/b")}) == 4


@pytest.mark.parametrize("location", ["/a/b", "/a/b/", "/a//b", "file:/a/b", "file:///a/b", " /a/b "])
def test_normalizes_spellings_of_a_checkpoint(location: str) -> None:
    assert normalize_checkpoint(location) == "/a/b"


@pytest.mark.parametrize("location", ["s3://bucket/a", "hdfs://node:8020/a"])
@pytest.mark.parametrize("slashes", ["/", "//"])
def test_keeps_uri_of_remote_checkpoint(location: str, slashes: str) -> None:
    assert normalize_checkpoint(f"{location}/") == location
    assert normalize_checkpoint(f"{location}{slashes}b") == f"{location}/b"


def test_normalizes_checkpoint_of_file_system_without_hosts() -> None:
    assert {normalize_checkpoint(f"dbfs:{slashes}a/b") for slashes in ("/", "///")} == {"dbfs:/a/b"}


def test_removes_credentials_from_checkpoint() -> None:
    assert normalize_checkpoint("s3a://key:secret@bucket/a") == "s3a://bucket/a"
    assert normalize_checkpoint("/a:b/b@c") == "/a:b/b@c"


def test_keeps_azure_container_in_checkpoint() -> None:
    """Two containers of one account are different locations."""
    ones, others = ("abfss://" + container + "@account.dfs.core.windows.net/a" for container in ("ones", "others"))
    assert (normalize_checkpoint(ones), normalize_checkpoint(others)) == (ones, others)


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", "x" * 201, "ä"])
def test_rejects_invalid_prefix(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid prefix for transactional ids"):
        validate_prefix(prefix)


def test_accepts_valid_prefix() -> None:
    assert validate_prefix("My.query_1-a") == "My.query_1-a"
