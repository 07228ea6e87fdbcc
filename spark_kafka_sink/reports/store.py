"""Storage of reports by the driver, through Arrow's file systems because Spark's need a JVM.

If the path is a file on the driver's machine, each report is appended to it as a line of JSON. Any other path is a
directory, in which each report becomes a new file, because objects in an object store cannot be appended to. File names
start with the write's start time, so alphabetical order is chronological.

    /data/reports.jsonl, file:///data/reports.jsonl      a file
    /data/reports/ (or an existing directory)            a directory
    dbfs:/reports, /dbfs/reports, /Volumes/a/b/c         a directory in a Databricks mount
    s3://bucket/reports, also s3a: and s3n:              a directory, also in hdfs:, viewfs:, gs:, abfs: and abfss:

The path must not contain credentials, because Spark shows options in its plans and its UI.

pyarrow.fs is imported inside the functions, because it loads clients of S3 and HDFS that most writes do not need.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports.write_report import WriteReport, parse_report

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOCAL_SCHEMES = ("", "file", "dbfs")
_ARROW_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
}
"""Arrow's URI schemes by Spark's."""
_REMEDIES = {
    "s3": (
        "The credentials are those of the environment, ~/.aws or the machine's role; Spark's fs.s3a settings are not "
        "used. Set the region or a custom endpoint in the path: "
        "?region=...&endpoint_override=host:port&scheme=http."
    ),
    "hdfs": (
        "Set JAVA_HOME, HADOOP_HOME with lib/native/libhdfs.so in it (or ARROW_LIBHDFS_DIR, the directory of "
        "libhdfs.so) and CLASSPATH=$(hadoop classpath --glob) in the environment before the driver starts. If Hadoop "
        "is not installed on the driver, use the option reportTopic to write reports to Kafka."
    ),
    "gs": "The credentials are those of GOOGLE_APPLICATION_CREDENTIALS or of the machine.",
    "abfs": "The credentials are those of Azure's environment variables or of the machine.",
}
"""Remedy for a failed read or write, by Arrow's URI scheme. For object stores, also for credentials in the path."""
_REMEDIES |= {"viewfs": _REMEDIES["hdfs"], "abfss": _REMEDIES["abfs"]}
_HADOOP_SCHEMES = ("hdfs", "viewfs")
_HADOOP_OPTIONS_REMEDY = "Remove credentials, and set other Hadoop options in core-site.xml or hdfs-site.xml."
_QUERY_PARAMETERS = {
    "s3": (
        "region",
        "endpoint_override",
        "scheme",
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "allow_delayed_open",
        "smart_defaults",
        "tls_ca_dir_path",
        "tls_ca_file_path",
        "tls_verify_certificates",
    ),
    "hdfs": ("user", "replication", "buffer_size", "default_block_size", "kerb_ticket"),
    "gs": ("endpoint_override", "scheme", "project_id", "retry_limit_seconds"),
    "abfs": (
        "blob_storage_authority",
        "dfs_storage_authority",
        "enable_tls",
        "credential_kind",
        "client_id",
        "background_writes",
    ),
}
"""Arrow's query parameters that contain no credentials, by its URI scheme."""
_QUERY_PARAMETERS |= {"viewfs": _QUERY_PARAMETERS["hdfs"], "abfss": _QUERY_PARAMETERS["abfs"]}
_SUPPORTED_PATHS_TEXT = (
    "a path on the driver's machine, or one that starts with file:, dbfs:, s3: (also s3a:, s3n:), hdfs:, viewfs:, gs:, "
    "abfs: or abfss:"
)
_MOUNTS = ("/dbfs/", "/Volumes/")
"""Databricks mounts. Every path in them is treated as a directory, because files in them cannot be appended to."""
_DBFS_MOUNT = "/dbfs"
_MAX_BATCH_LENGTH = 100
"""Maximum length of the batch name in a file name."""
_MAX_SEARCHED_REPORTS = 20
_MAX_SEARCHED_BYTES = 4 << 20
"""Limits for find_reports. It is called right after a batch was written, so its reports are among the latest."""


def find_path_error(path: str) -> str | None:
    """Explain why reports cannot be stored at this path, or return None if the path is valid.

    The explanation starts in lower case, so that it can follow a prefix. It does not show the path, which may contain
    credentials.
    """
    try:
        scheme = _parse_scheme(path)
        url = urlsplit(path)
        if scheme in _ARROW_SCHEMES:
            _ = url.port
    except ValueError:
        # A password with a slash or a bracket that is not percent-encoded also has this effect.
        return "its host or its port is invalid. Correct the path, and remove the password if it contains one."
    if scheme not in _LOCAL_SCHEMES and scheme not in _ARROW_SCHEMES:
        return f"{scheme}: paths are not supported for reports. Use {_SUPPORTED_PATHS_TEXT}."
    if scheme in _ARROW_SCHEMES:
        return _find_remote_path_error(url, _ARROW_SCHEMES[scheme])
    # In a path without a scheme, `?` and `#` are ordinary characters.
    is_local_uri = scheme != "" and scheme in _LOCAL_SCHEMES
    has_host = url.netloc not in ("", "localhost")
    if is_local_uri and (has_host or url.query or url.fragment):
        return f"a {scheme}: path must not include a host, and must encode '?' and '#' as %3F and %23."
    return None


def check_path(path: str) -> None:
    """Raise ConfigurationError if reports cannot be stored at this path. The path is not accessed."""
    path_error = find_path_error(path)
    if path_error is not None:
        raise ConfigurationError(f"The path cannot be used: {path_error}")


def _find_remote_path_error(url: SplitResult, arrow_scheme: str) -> str | None:
    """Explain why a path in a remote file system is invalid, as find_path_error does."""
    is_object_store = arrow_scheme not in _HADOOP_SCHEMES
    remedy = _REMEDIES[arrow_scheme] if is_object_store else _HADOOP_OPTIONS_REMEDY
    if is_object_store and not url.netloc:
        return f"the path must begin with {url.scheme}:// and the name of a bucket or container."
    # urlsplit ends the host at the first slash. If a password has a slash, it takes the part before the slash for a
    # port. Buckets and containers have no port, but a host that follows an Azure account and "@" may have one.
    if is_object_store and ":" in unquote(url.netloc.rpartition("@")[0] or url.netloc):
        return f"the path contains a password or a port. {remedy}"
    if url.password is not None:
        return f"the path contains a password. {remedy}"
    parameters = _QUERY_PARAMETERS[arrow_scheme]
    if not {name for name, _ in parse_qsl(url.query, keep_blank_values=True)} <= {*parameters}:
        return f"its query may only contain {', '.join(parameters)}, and no credentials. {remedy}"
    return None


def strip_query(path: str) -> str:
    """Return the path as messages show it: without the query of a URI."""
    return re.split("[?#]", path, maxsplit=1)[0] if _parse_scheme(path) in _ARROW_SCHEMES else path


def ensure_writable(path: str) -> None:
    """Create the report directory if it is missing. Raise ConfigurationError if reports cannot be saved at the path.

    For a remote directory that exists, this does not show whether a file can be created in it. A test file would have
    to be deleted again, for which a user who may only create objects lacks the permission, and in a bucket with object
    versions or notifications, each write would leave traces.
    """
    local_path = _find_local_path(path)
    if local_path is not None and not _is_directory(local_path):
        _ensure_appendable(path, local_path)
        return
    with _explain_errors(path, "cannot be written"):
        file_system, directory = _open_file_system(path)
        file_system.create_dir(directory, recursive=True)
        if local_path is not None and not os.access(directory, os.W_OK):
            raise PermissionError("the directory is not writable")


def save_report(path: str, report: WriteReport) -> None:
    """Append the report to the file at the path, or save it as a new file if the path is a directory.

    If the report cannot be saved, raise ConfigurationError for a remote path, and OSError for any other path.
    """
    line = report.to_json().encode() + b"\n"
    local_path = _find_local_path(path)
    if local_path is not None and not _is_directory(local_path):
        with _open_private_file(local_path, os.O_APPEND) as file:
            # Write the line with a single call, so that several streams can share the file.
            file.write(line)
        return
    file_name = build_file_name(report)
    if local_path is not None:
        _, directory = _open_file_system(path)
        # Unlike Arrow, create the file so that only its owner can read it.
        with _open_private_file(f"{directory}/{file_name}", os.O_TRUNC) as file:
            file.write(line)
        return
    with _explain_errors(path, "cannot be written"):
        file_system, directory = _open_file_system(path)
        with file_system.open_output_stream(f"{directory}/{file_name}") as stream:
            stream.write(line)


def _open_private_file(path: str, flags: int) -> RawIOBase:
    """Open a local file for writing. If the file is created, only its owner can read it.

    Raise OSError if the path is a symbolic link, or a FIFO without a reader.
    """
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    # With O_NONBLOCK, opening a FIFO without a reader fails instead of waiting for one.
    descriptor = os.open(path, flags, 0o600)
    return open(descriptor, "wb", buffering=0)


def read_reports(path: str, max_reports: int | None = None) -> list[WriteReport]:
    """Return the reports at a `reportPath` in chronological order, or only the latest `max_reports` of them.

    Raise ConfigurationError if the path cannot be read or contains anything other than reports.
    """
    check_path(path)
    with _explain_errors(path, "cannot be read"):
        # A directory has one report per file, but a file may have any number of lines, so keep only the last lines.
        lines = deque(_read_lines(path, max_reports), maxlen=max_reports)
    return [_parse_line(f"{strip_query(path)}, {position}", line) for position, line in lines]


def find_reports(path: str, batch: str) -> list[WriteReport]:
    """Return the reports of a batch that are among the most recent reports at the path, in chronological order.

    Raise ConfigurationError if the path cannot be read, or if those reports contain anything else.
    """
    check_path(path)
    with _explain_errors(path, "cannot be read"):
        texts = _read_latest_reports(path, _build_file_suffix(batch))
    latest_reports = [_parse_line(strip_query(path), text) for text in texts]
    return [report for report in latest_reports if report.batch == batch]


def build_file_name(report: WriteReport) -> str:
    """Return the name of the report's file in a directory. It begins with the write's start time in UTC.

    A checksum of the report follows, because threads of a `foreachBatch` function may start two writes of a micro-batch
    in the same millisecond.
    """
    milliseconds = report.started_ms % 1000
    checksum = zlib.crc32(report.to_json().encode())
    return f"{report.started_at:%Y%m%dT%H%M%S}.{milliseconds:03}Z-{checksum:08x}{_build_file_suffix(report.batch)}"


def _build_file_suffix(batch: str) -> str:
    """Return the suffix of a batch's report file names. Batches with long names may have the same suffix."""
    return f"-{_to_file_name_part(batch)}.json"


def _to_file_name_part(batch: str) -> str:
    """Replace characters that are unsafe in file names with hyphens, and limit the length."""
    return re.sub(r"[^\w.-]+", "-", batch)[:_MAX_BATCH_LENGTH]


def _read_lines(path: str, max_files: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file, or of the latest `max_files` files in a directory.

    Each line follows its position, such as "line 3", or "<file name>, line 1" in a directory.
    """
    from pyarrow.fs import FileType

    file_system, path_in_system = _open_file_system(path)
    file_info = file_system.get_file_info(path_in_system)
    if file_info.type == FileType.NotFound:
        raise FileNotFoundError("no such file or directory")
    if file_info.type == FileType.Unknown:
        raise OSError("the path is neither a file nor a directory")
    file_paths = [path_in_system]
    is_directory = file_info.type == FileType.Directory
    if is_directory:
        file_paths = _list_files(file_system, path_in_system, ".json")
        if max_files is not None:
            file_paths = file_paths[-max_files:]
    for file_path in file_paths:
        prefix = f"{sanitize(os.path.basename(file_path))}, " if is_directory else ""
        for number, line in enumerate(_read_text(file_system, file_path).split("\n"), start=1):
            if line.strip():
                yield f"{prefix}line {number}", line


def _parse_line(location: str, line: str) -> WriteReport:
    """Parse a line. Raise ConfigurationError with the location of the line if it is not a report."""
    try:
        return parse_report(line)
    except ConfigurationError as error:
        raise ConfigurationError(f"{location}: {error}") from error


def _read_text(file_system: FileSystem, path_in_system: str) -> str:
    with file_system.open_input_stream(path_in_system) as stream:
        text: str = stream.read().decode()
    return text


def _read_latest_reports(path: str, suffix: str) -> list[str]:
    """Return the most recent reports, each as a JSON string, with the latest one last.

    Read the last lines if `path` is a file, or the latest files with this suffix if it is a directory. Return an empty
    list if it is neither.
    """
    from pyarrow.fs import FileType

    file_system, path_in_system = _open_file_system(path)
    file_info = file_system.get_file_info(path_in_system)
    if file_info.type == FileType.Directory:
        file_paths = _list_files(file_system, path_in_system, suffix)[-_MAX_SEARCHED_REPORTS:]
        return [_read_text(file_system, file_path) for file_path in file_paths]
    # Opening a FIFO would block until a process writes to it.
    if file_info.type != FileType.File:
        return []
    with file_system.open_input_file(path_in_system) as file:
        start = max(0, file_info.size - _MAX_SEARCHED_BYTES)
        file.seek(start)
        # If reading starts within the file, the first line may be incomplete and may even begin within a character.
        lines = file.read().decode(errors="replace").split("\n")
    complete_lines = lines[1:] if start else lines
    return [line for line in complete_lines if line.strip()][-_MAX_SEARCHED_REPORTS:]


def _list_files(file_system: FileSystem, directory: str, suffix: str) -> list[str]:
    """Return the paths of the files with this suffix, sorted by name, which is chronological order."""
    from pyarrow.fs import FileSelector, LocalFileSystem

    if isinstance(file_system, LocalFileSystem):
        # Arrow would call stat() on every file, and a stream that runs for a week creates 100,000 of them.
        with os.scandir(directory) as entries:
            return sorted(entry.path for entry in entries if entry.name.endswith(suffix) and entry.is_file())
    file_infos = file_system.get_file_info(FileSelector(directory))
    return sorted(file_info.path for file_info in file_infos if file_info.path.endswith(suffix))


def _parse_scheme(path: str) -> str:
    """Return the path's URI scheme in lower case, or "" if it has none."""
    scheme = urlsplit(path).scheme.lower()
    return "" if len(scheme) == 1 else scheme  # a single letter is a Windows drive


def _find_local_path(path: str) -> str | None:
    """Return the path as a local path on the driver's machine, or None if it is in a remote file system."""
    scheme = _parse_scheme(path)
    if scheme not in _LOCAL_SCHEMES:
        return None
    if scheme == "":
        return path
    local_path = unquote(urlsplit(path).path)
    return local_path if scheme == "file" else _DBFS_MOUNT + local_path


def _is_directory(local_path: str) -> bool:
    return local_path.endswith("/") or local_path.startswith(_MOUNTS) or os.path.isdir(local_path)


def _ensure_appendable(path: str, local_path: str) -> None:
    """Raise ConfigurationError if the file can neither be appended to nor created."""
    directory = os.path.dirname(os.path.abspath(local_path))
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{path}: the directory {directory} does not exist on the driver's machine.")
    if os.path.islink(local_path) or (os.path.exists(local_path) and not os.path.isfile(local_path)):
        raise ConfigurationError(
            f"{path}: the path is a symbolic link or not a regular file. Use the path of a regular file."
        )
    checked_path = local_path if os.path.exists(local_path) else directory
    if not os.access(checked_path, os.W_OK):
        raise ConfigurationError(f"{path}: {checked_path} is not writable on the driver's machine.")


def _open_file_system(path: str) -> tuple[FileSystem, str]:
    """Return the Arrow file system that holds `path`, and the path within it.

    `path` must be one for which find_path_error returns None. Raise OSError, ValueError, NotImplementedError or
    ArrowException if the file system is not available.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    scheme = _parse_scheme(path)
    local_path = _find_local_path(path)
    if local_path is not None:
        if scheme == "dbfs" and not os.path.isdir(_DBFS_MOUNT):
            raise OSError(f"dbfs: paths require {_DBFS_MOUNT}, which is not mounted")
        return LocalFileSystem(), os.path.abspath(local_path)
    _, rest = path.split(":", 1)
    file_system, path_in_system = FileSystem.from_uri(f"{_ARROW_SCHEMES[scheme]}:{rest}")
    return file_system, path_in_system.rstrip("/")


@contextmanager
def _explain_errors(path: str, failure: str) -> Iterator[None]:
    """Convert errors of Arrow's file systems to ConfigurationError. `failure`: see _build_error."""
    try:
        yield
    # Azure's client raises a plain ArrowException without credentials.
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise _build_error(path, failure, error) from error


def _build_error(path: str, failure: str, error: Exception) -> ConfigurationError:
    """Build an error with the reason and a remedy.

    `failure`: what went wrong, for example "cannot be read".
    """
    remedy = _REMEDIES.get(_ARROW_SCHEMES.get(_parse_scheme(path), ""), "")
    # If Arrow cannot find a JVM, its message lists every path that it tried.
    lines = (line for line in str(error).splitlines() if not line.startswith("dlopen("))
    reason = sanitize(" ".join(lines))
    period = "" if reason.endswith(".") else "."
    return ConfigurationError(f"{strip_query(path)} {failure}: {reason}{period} {remedy}".rstrip())
