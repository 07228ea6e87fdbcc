"""Storage of reports in files and folders."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports import store
from spark_kafka_sink.reports.store import (
    build_file_name,
    ensure_writable,
    find_path_error,
    find_reports,
    read_reports,
    save_report,
)
from tests.reports.report_factories import make_report


def save_and_read_rows(path: str, *batch_ids: int) -> list[int]:
    """Save reports, read all reports back and return their row counts."""
    ensure_writable(path)
    for batch_id in batch_ids:
        save_report(path, make_report(batch_id, rows=10 + batch_id))
    return [report.rows for report in read_reports(path)]


def fail_file_system(message: str, error_type: type[Exception] = OSError) -> AbstractContextManager[object]:
    """Make Arrow fail with this message for every file system."""
    return patch("pyarrow.fs.FileSystem", Mock(from_uri=Mock(side_effect=error_type(message))))


def save(path: str) -> None:
    save_report(path, make_report())


def test_file_has_a_line_per_report(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    assert save_and_read_rows(str(path), 1, 2) == [11, 12]
    assert len(path.read_text().splitlines()) == 2


def test_accepts_file_uri(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    assert save_and_read_rows(f"file://{tmp_path}/with%20space/reports.jsonl", 1, 2) == [11, 12]
    assert (tmp_path / "with space" / "reports.jsonl").exists()


def test_folder_has_a_file_per_report_in_chronological_order(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert save_and_read_rows(f"{folder}/", 2, 1, 3) == [11, 12, 13]
    name = min(file.name for file in folder.iterdir())
    assert re.fullmatch(r"20231114T221330\.000Z-[0-9a-f]{8}-6d2a-1\.json", name)
    assert [report.rows for report in read_reports(str(folder), max_reports=2)] == [12, 13]


def test_folder_keeps_reports_of_one_batch_that_start_at_the_same_time(tmp_path: Path) -> None:
    path = f"{tmp_path}/"
    for rows in (1, 2):
        save_report(path, make_report(rows=rows))
    assert sorted(report.rows for report in find_reports(path, make_report().batch)) == [1, 2]


def test_reads_last_reports_of_file(tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    save_and_read_rows(path, 1, 2, 3)
    assert [report.rows for report in read_reports(path, max_reports=2)] == [12, 13]


def test_file_name_has_no_special_characters() -> None:
    hostile = dataclasses.replace(make_report(), batch="../../etc/passwd\n\0" + "x" * 500)
    name = build_file_name(hostile)
    assert re.match(r"20231114T221320\.000Z-[0-9a-f]{8}-\.\.-\.\.-etc-passwd-xxx", name)
    assert "/" not in name
    assert len(name) < 140


def test_databricks_mounts_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DBFS_MOUNT", str(tmp_path))
    monkeypatch.setattr(store, "_MOUNTS", (f"{tmp_path}/", "/Volumes/"))
    assert save_and_read_rows("dbfs:/reports/orders", 1, 2) == [11, 12]
    assert len(list((tmp_path / "reports" / "orders").iterdir())) == 2


def test_error_names_missing_databricks_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DBFS_MOUNT", "/no-such-mount")
    with pytest.raises(ConfigurationError, match="dbfs: paths require /no-such-mount, which is not mounted"):
        ensure_writable("dbfs:/reports/")


@pytest.mark.parametrize("path", ["ftp://host/reports", "hbase:/x", "S4://bucket/x"])
def test_rejects_unsupported_file_system_and_lists_supported_ones(path: str) -> None:
    path_error = find_path_error(path)
    assert path_error is not None
    assert "Use a path on the driver's machine, or one that starts with file:, dbfs:, s3:" in path_error
    with pytest.raises(ConfigurationError, match="paths are not supported for reports"):
        read_reports(path)


@pytest.mark.parametrize(
    "path",
    [
        "/a/b",
        "a.jsonl",
        "C:\\reports\\x",
        "file:/a",
        "s3a://b/c",
        "hdfs://name:8020/x",
        "hdfs:///x",
        "gs://anonymous@b/x",
        "abfss://c@a.net/x",
        "abfs://account@localhost:10000/c/x",
    ],
)
def test_supported_paths_have_no_error(path: str) -> None:
    assert find_path_error(path) is None


def test_rejects_password_in_path_without_repeating_it() -> None:
    path_error = find_path_error("s3a://AKIA:topsecret@bucket/reports")
    assert path_error is not None
    assert "contains a password" in path_error
    assert "topsecret" not in path_error


@pytest.mark.parametrize("path", ["s3a://AKIA:top/secret@bucket/reports", "s3a://AKIA:top[secret@bucket/reports"])
def test_rejects_unencoded_password_in_path_without_repeating_it(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"its host or its port is invalid.*remove the password") as caught:
        read_reports(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "s3a://AKIA:/top/hush@bucket/reports",
        "s3a://AKIA:42/hush@bucket/reports",
        "s3a://AKIA:42#hush@bucket/reports",
        "s3a://AKIA%3Ahush@bucket/reports",
        "s3://:hush@bucket/reports",
        "gs://key:/hush@bucket/reports",
        "abfss://account:42/hush@container/reports",
    ],
)
def test_rejects_secret_that_is_parsed_as_port_or_user_without_repeating_it(path: str) -> None:
    with pytest.raises(ConfigurationError, match="contains a password or a port") as caught:
        read_reports(path)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("path", ["hdfs://name/x?dfs.client.use.datanode.hostname=true", "viewfs://alice:hush@name/x"])
def test_rejection_of_hadoop_option_names_file_for_it_and_not_libhdfs(path: str) -> None:
    path_error = find_path_error(path)
    assert path_error is not None
    assert path_error.endswith("set other Hadoop options in core-site.xml or hdfs-site.xml.")
    assert "JAVA_HOME" not in path_error


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "abfs"])
@pytest.mark.parametrize("rest", ["AKIA:hush@bucket/x", "bucket/x", "///AKIA:hush@bucket/x"])
def test_rejects_object_store_without_bucket(scheme: str, rest: str) -> None:
    path_error = find_path_error(f"{scheme}:{rest}")
    assert path_error == f"the path must begin with {scheme}:// and the name of a bucket or container."


@pytest.mark.parametrize(
    "path",
    [
        "s3a://bucket/reports?region=eu-west-1&secret_key=hush",
        "s3://bucket/reports?hush",
        "abfss://c@a.dfs.core.windows.net/reports?tenant_id=t&client_id=c&client_secret=hush",
        "abfss://c@a.dfs.core.windows.net/reports?sv=2024&sig=hush",
        "gs://bucket/reports?access_token=hush",
        "hdfs://name:8020/reports?dfs.password=hush",
    ],
)
def test_rejects_credentials_in_query_without_repeating_them(path: str) -> None:
    path_error = find_path_error(path)
    assert path_error is not None
    assert "its query may only contain " in path_error
    with pytest.raises(ConfigurationError, match="may only contain") as caught:
        read_reports(path)
    assert "hush" not in path_error + str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "s3a://bucket/reports?region=eu-west-1&endpoint_override=host:9000&scheme=http",
        "abfs://c@a.dfs.core.windows.net/reports?credential_kind=environment",
        "gs://bucket/reports?project_id=p",
        "viewfs://cluster/reports?user=alice",
    ],
)
def test_accepts_query_without_credentials(path: str) -> None:
    assert find_path_error(path) is None


def test_rejects_file_in_missing_folder_before_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the directory .*/missing does not exist on the driver's machine"):
        ensure_writable(str(tmp_path / "missing" / "reports.jsonl"))


def test_rejects_read_only_file_before_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "reports.jsonl"
    file.touch()
    # os.access() is patched, because tests may run as root, which can write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) != (str(file), os.W_OK))
    with pytest.raises(ConfigurationError, match="is not writable on the driver's machine"):
        ensure_writable(str(tmp_path / "reports.jsonl"))


def test_rejects_folder_inside_a_file_before_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ensure_writable(f"{tmp_path}/file/reports/")


def test_reading_missing_path_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: no such file or directory"):
        read_reports(str(tmp_path / "missing"))


def test_error_names_position_of_line_that_is_not_a_report(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    save(str(path))
    path.write_text(path.read_text() + "\npassword=hush\n")
    with pytest.raises(ConfigurationError, match=f"^{path}, line 3: this is not a write report") as caught:
        read_reports(str(path))
    assert "hush" not in str(caught.value)


def test_error_names_file_that_is_not_a_report(tmp_path: Path) -> None:
    save(f"{tmp_path}/")
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ConfigurationError, match=f"^{tmp_path}, settings.json, line 1: this is not a write report"):
        read_reports(str(tmp_path))


def test_error_without_hadoop_lists_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"load lib.*Set JAVA_HOME.*lib/native/libhdfs\.so.*and CLASSPATH"):
        ensure_writable("hdfs://127.0.0.1:1/reports")


def test_error_omits_paths_where_arrow_searched_for_jvm() -> None:
    """Arrow tries about ninety paths."""
    attempts = "".join(f"\ndlopen(/usr/{number}/libjvm.so) failed: no such file" for number in range(90))
    with (
        fail_file_system(f"Unable to load libjvm{attempts}"),
        pytest.raises(ConfigurationError, match=r"Unable to load libjvm\. Set JAVA_HOME") as caught,
    ):
        ensure_writable("hdfs://name:8020/reports")
    assert "dlopen" not in str(caught.value)


@pytest.mark.parametrize("operation", [ensure_writable, read_reports])
def test_file_system_errors_are_one_line_of_bounded_length(operation: Callable[[str], object]) -> None:
    with fail_file_system("first\n" + 10_000 * "x"), pytest.raises(ConfigurationError, match=r"first x{100}") as caught:
        operation("s3://bucket/reports")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).endswith("&scheme=http.")


@pytest.mark.parametrize("operation", [ensure_writable, save, read_reports])
def test_file_system_errors_do_not_show_query(operation: Callable[[str], object]) -> None:
    with (
        fail_file_system("access denied"),
        pytest.raises(ConfigurationError, match=r"^s3://bucket/reports cannot be .*: access denied") as caught,
    ):
        operation("s3://bucket/reports?endpoint_override=https://alice:hush@host")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("operation", [ensure_writable, save, read_reports])
def test_azure_error_without_credentials_has_remedy(operation: Callable[[str], object]) -> None:
    """Azure's client raises an ArrowException, which is neither an OSError nor a ValueError."""
    with (
        fail_file_system("DefaultAzureCredential failed", pa.ArrowException),
        pytest.raises(
            ConfigurationError, match=r"DefaultAzureCredential failed\. The credentials are those of Azure's"
        ),
    ):
        operation("abfss://c@a.dfs.core.windows.net/reports")


@pytest.mark.parametrize("name", ["reports.jsonl", "folder/"])
def test_finds_report_of_recent_batch(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    save_and_read_rows(path, *range(30))
    assert [report.rows for report in find_reports(path, "6d2a/29")] == [39]
    assert find_reports(path, "6d2a/9") == [] or name == "folder/"
    assert find_reports(path, "other/29") == []
    assert find_reports(f"{tmp_path}/missing", "6d2a/29") == []


@pytest.mark.parametrize("name", ["reports.jsonl", "folder/"])
def test_finds_all_reports_of_batch_in_chronological_order(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    ensure_writable(path)
    first_report = make_report(1, rows=10)
    for report in (
        first_report,
        make_report(0),
        dataclasses.replace(first_report, started_ms=first_report.started_ms + 1, rows=20),
    ):
        save_report(path, report)
    assert [report.rows for report in find_reports(path, first_report.batch)] == [10, 20]


@pytest.mark.parametrize("find", [read_reports, lambda path: find_reports(path, "6d2a/29")])
@pytest.mark.parametrize("path", ["https://x/y", "s3a://AKIA:hush@bucket/reports", "gs://bucket/x?token=hush"])
def test_reading_checks_path(find: Callable[[str], object], path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^The path cannot be used: ") as caught:
        find(path)
    assert "hush" not in str(caught.value)


def test_error_of_search_names_path_that_cannot_be_read() -> None:
    with (
        fail_file_system("access denied"),
        pytest.raises(ConfigurationError, match=r"^s3://bucket/reports cannot be read: access denied\. The cred"),
    ):
        find_reports("s3://bucket/reports?region=eu-west-1", "6d2a/29")


def test_error_of_search_names_file_that_has_something_else(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text("password=hush\n")
    with pytest.raises(ConfigurationError, match=f"^{path}: this is not a write report") as caught:
        find_reports(str(path), "6d2a/29")
    assert "hush" not in str(caught.value)


def test_finds_report_in_folder_without_stat_of_each_file(tmp_path: Path) -> None:
    """A listener calls find_reports for each micro-batch. Calling stat() for fifty thousand files took two seconds."""
    save_and_read_rows(f"{tmp_path}/", 1, 2, 3)
    with patch("pyarrow.fs.FileSelector", side_effect=AssertionError):
        reports = find_reports(f"{tmp_path}/", make_report(2).batch)
    assert [report.rows for report in reports] == [12]


def test_finds_report_at_end_of_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_SEARCHED_BYTES", 3_000)
    path = str(tmp_path / "reports.jsonl")
    save_and_read_rows(path, *range(10))
    assert [report.rows for report in find_reports(path, "6d2a/9")] == [19]


@pytest.mark.parametrize("name", ["reports.jsonl", ""])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o600), (0o000, 0o600), (0o277, 0o400)])
def test_only_owner_can_read_report(tmp_path: Path, name: str, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_report(f"{tmp_path}/{name}", make_report())
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == mode


def test_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.touch()
    path.chmod(0o640)
    assert save_and_read_rows(str(path), 1) == [11]
    assert path.stat().st_mode & 0o777 == 0o640


def test_does_not_follow_symbolic_links(tmp_path: Path) -> None:
    folder, target = tmp_path / "reports", tmp_path / "target"
    folder.mkdir()
    target.write_text("mine")
    (folder / build_file_name(make_report())).symlink_to(target)
    (tmp_path / "reports.jsonl").symlink_to(target)
    for path in (f"{folder}/", str(tmp_path / "reports.jsonl")):
        with pytest.raises(OSError, match="symbolic links"):
            save_report(path, make_report())
    assert target.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="is a symbolic link or not a regular file"):
        ensure_writable(str(tmp_path / "reports.jsonl"))


def test_rejects_devices_and_fifos(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(ConfigurationError, match="is a symbolic link or not a regular file"):
            ensure_writable(path)
        with pytest.raises(ConfigurationError, match="is neither a file nor a directory"):
            read_reports(path)


@pytest.mark.parametrize("path", ["file://other/reports", "file:///a?b", "file:///a#b", "dbfs://reports/a"])
def test_rejects_local_uri_with_host_or_query(path: str) -> None:
    path_error = find_path_error(path)
    assert path_error is not None
    assert "must not include a host" in path_error
    assert find_path_error("file://localhost/reports") is None


def test_reading_path_with_password_does_not_repeat_it() -> None:
    with pytest.raises(ConfigurationError, match="contains a password") as caught:
        read_reports("s3a://AKIA:topsecret@bucket/reports")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_reads_reports_with_unicode_line_separators(tmp_path: Path, separator: str) -> None:
    path = str(tmp_path / "reports.jsonl")
    ensure_writable(path)
    batches = [f"nightly{separator}{number}" for number in (1, 2)]
    for batch in batches:
        save_report(path, dataclasses.replace(make_report(), batch=batch))
    assert [report.batch for report in read_reports(path)] == batches
    assert [report.batch for report in find_reports(path, batches[0])] == [batches[0]]


def test_ignores_fifo_in_report_folder(tmp_path: Path) -> None:
    save_and_read_rows(f"{tmp_path}/", 1)
    os.mkfifo(tmp_path / "later-6d2a-1.json")
    assert [report.rows for report in read_reports(str(tmp_path))] == [11]
    assert [report.rows for report in find_reports(str(tmp_path), make_report(1).batch)] == [11]


def test_rejects_fifo_in_place_of_new_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / build_file_name(make_report(1)))
    with pytest.raises(OSError, match="No such device or address"):
        save_report(f"{tmp_path}/", make_report(1))
