"""Files that options name: only regular files of limited size are read, and errors show no file's content."""

from __future__ import annotations

import ast
import base64
import errno
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spark_kafka_sink.errors import OptionSpelling
from spark_kafka_sink.options.files import MAX_FILE_BYTES, build_unreadable_file_problem, read_bounded_file

PACKAGE = Path(__file__).resolve().parents[2] / "spark_kafka_sink"
OTHER_READERS = {
    "options/files.py",
    "broker/storage.py",  # the broker's data
    "exactly_once/job_names.py",  # kernel files about this machine and its processes
    "reports/store.py",  # reports, which grow without a limit
    "cli/input_rows.py",  # input rows, whose size is not limited
    "cli/main.py",  # the null device
}


def test_reads_file_and_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "schema").write_bytes(b"{}")
    (tmp_path / "link").symlink_to(tmp_path / "schema")  # Kubernetes mounts secrets like this
    assert read_bounded_file(tmp_path / "schema") == read_bounded_file(str(tmp_path / "link")) == b"{}"
    assert read_bounded_file(tmp_path / "schema", 2) == b"{}"


def test_rejects_file_above_size_limit(tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MAX_FILE_BYTES + 1)
    with pytest.raises(OSError, match=f"the file is longer than {MAX_FILE_BYTES} bytes"):
        read_bounded_file(tmp_path / "large")


def test_rejects_files_that_are_not_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, file_type in (
            (Path("/dev/zero"), "a device"),
            (tmp_path, "a directory"),
            (tmp_path / "socket", "a socket"),
            (tmp_path / "pipe", "a pipe"),
        ):
            with pytest.raises(OSError, match=f"it is {file_type}, not a regular file"):
                read_bounded_file(path)
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(OSError, match="the path contains a NUL character or is not valid Unicode"):
            read_bounded_file(name)


def test_allow_pipe_accepts_pipe_but_no_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a=b",))
    writer.start()
    assert read_bounded_file(pipe, allow_pipe=True) == b"a=b"
    writer.join()
    with pytest.raises(OSError, match="a device"):
        read_bounded_file("/dev/zero", allow_pipe=True)


def to_base64(content: bytes) -> str:
    """Encode the content, with bytes after it that have every character of base64."""
    return base64.b64encode(content + bytes(range(256))).decode()


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN PRIVATE KEY----- MIGHAgEA -----END PRIVATE KEY-----",
        "first line\nsecond line",
        '{"type": "record", "name": "Order"}',
        '{ "type": "record", "name": "Order"}',
        '["null", "string"]',
        '"string"',
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl",
        "/eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl",
        "M" + 20 * "IG/+" + "==",
        to_base64(b"0\x81\x87"),
        base64.b64encode(b"0." + bytes(46)).decode(),  # as short as an Ed25519 key
        to_base64(b"-----BEGIN PRIVATE KEY-----"),
        to_base64(b"Bag Attributes"),
        to_base64(b"\xfe\xed\xfe\xed\x00\x00\x00\x02"),
        base64.urlsafe_b64encode(b"\xfe\xed\xfe\xed" + bytes(60)).decode(),
        to_base64(b'{"payload": {'),
        to_base64(b'{ "payload": {'),
        to_base64(b'{\n"payload": {'),
        "MIGH" + 18 * "AgEA" + " " + 18 * "IG/+",  # base64 in lines, whose line feeds were replaced
        "MIGH" + 9 * "AgEA" + "\\n" + 10 * "IG/+",  # the characters of \n in place of line feeds
        '"' + to_base64(b"0\x81\x87") + '"',
        " " + to_base64(b"0\x81\x87"),
        "data:;base64," + to_base64(b"0\x81\x87"),
        "ssl.keystore.location=" + to_base64(b"0\x81\x87"),
        to_base64(b"0\x81\x87").replace("+", "%2B").replace("=", "%3D"),
        to_base64(b"0\x81\x87") + " # client.key",
        to_base64(b"\xef\xbb\xbf-----BEGIN PRIVATE KEY-----"),
        to_base64("-----BEGIN PRIVATE KEY-----".encode("utf-16")),  # begins with two slashes
        to_base64(b"\n-----BEGIN PRIVATE KEY-----"),
        to_base64(b"# client key\n-----BEGIN PRIVATE KEY-----"),
        to_base64(b"Private-Key: (2048 bit, 2 primes)"),
        to_base64(b"\xce\xce\xce\xce\x00\x00\x00\x02"),  # JCEKS
        bytes(range(60)).hex(),
        bytes(range(60)).hex(":"),
        to_base64(b"0\x81\x87").rstrip("=") + "." + 27 * "A",  # a signed token that is not a JSON Web Token
    ],
)
def test_does_not_show_file_content_in_place_of_a_path(content: str) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", content)
    text = build_unreadable_file_problem("ssl.keystore.location", content, error, "the driver").render()
    assert text == (
        "ssl.keystore.location must be the path of a file, but seems to contain the content itself, which is not "
        "shown. Save the content to a file and set the option to the path of the file."
    )


@pytest.mark.parametrize(
    "path",
    [
        "/etc/kafka/{env}/key.pem",
        "/etc/certs/{{ env }}/ca.pem",
        "/etc/certs/{, }/ca.pem",
        "orders.v1.avsc",
        "/etc/" + 20 * "production/" + "keystore",
        "../" + 20 * "production/" + "keystore",
        "." + 90 * "/",
        "/mnt/secrets/kafka_2.13/" + 20 * "production/" + "client.keystore.jks",
        "eyJ.pem",
        "[/etc/ca.pem]",
        '["/etc/ca.pem"]',
        "M",
        "/u3+7",
        "Material/" + 20 * "abc" + ".pem",
        "/dbfs/FileStore/shared_uploads/platform-team/kafka-certificates/client.truststore.jks",
        "/Volumes/production_catalog/security_schema/kafka_certificates/kafka.client.truststore.jks",
        "dbfs:/FileStore/kafka/certificates/production/cluster-one/client.truststore.jks",
        "s3://acme-data-platform-secrets/production/eu-central-1/kafka/client.truststore.jks",
    ],
)
def test_shows_path_of_unreadable_file(path: str) -> None:
    problem = build_unreadable_file_problem(
        "valueSchemaFile", path, OSError(errno.EINVAL, "it is a pipe"), "this machine"
    )
    assert problem.render() == f"valueSchemaFile is {path}, which cannot be read on this machine: it is a pipe."


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize(
    "path",
    ["/etc/ca.pem", "ca.pem", "/tmp/" + 20 * "production/" + "client.truststore.jks", "/tmp/" + 20 * "production/"],
)
def test_tells_to_remove_quotes_around_missing_path(path: str, quote: str) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory")
    problem = build_unreadable_file_problem("ssl.truststore.location", quote + path + quote, error, "the driver")
    assert problem.render() == (
        f"ssl.truststore.location is {quote}{path}{quote}, which cannot be read on the driver: it is in quotes. Remove "
        "the quotes."
    )


def test_does_not_blame_quotes_in_name_of_existing_file() -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    problem = build_unreadable_file_problem("ssl.truststore.location", '"ca.pem"', error, "the driver")
    assert problem.render().endswith("cannot be read on the driver: Permission denied.")


def test_names_option_for_content_as_user_writes_it() -> None:
    problem = build_unreadable_file_problem(
        "ssl.truststore.location", "a\nb", OSError(), "the driver", content_remedy="set {ssl.truststore.certificates}"
    )
    text = replace(problem, prefix="schema.registry.").render(OptionSpelling("'{}'".format))
    assert text.startswith("'schema.registry.ssl.truststore.location' must be the path of a file")
    assert text.endswith(", or set 'schema.registry.ssl.truststore.certificates'.")


def test_no_other_module_opens_files() -> None:
    reading_modules = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _reads(node)
    }
    assert reading_modules == OTHER_READERS


def _reads(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    named = call.func if isinstance(call.func, ast.Attribute) else None
    return named is not None and named.attr in ("read_text", "read_bytes", "open", "open_csv") and not _is_os(named)


def _is_os(named: ast.Attribute) -> bool:
    return isinstance(named.value, ast.Name) and named.value.id == "os"
