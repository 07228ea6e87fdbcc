"""Storage of reports in S3, with a server on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports.store import ensure_writable, read_reports, save_report
from tests.reports.report_factories import make_report


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a server with the bucket `jobs`, and return the query string of its paths."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    S3FileSystem(
        endpoint_override=f"{host}:{port}", scheme="http", region="eu-west-1", allow_bucket_creation=True
    ).create_dir("jobs")
    yield f"?endpoint_override={host}:{port}&scheme=http&region=eu-west-1"
    server.stop()


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_saves_each_report_as_an_object(endpoint: str, scheme: str) -> None:
    path = f"{scheme}://jobs/reports/by-{scheme}{endpoint}"
    ensure_writable(path)
    assert read_reports(path) == []
    for batch_id in (2, 1):
        save_report(path, make_report(batch_id, rows=10 + batch_id))
    assert [report.rows for report in read_reports(path)] == [11, 12]
    assert [report.rows for report in read_reports(path, max_reports=1)] == [12]


def test_rejects_missing_bucket_before_write(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3a://other/.* cannot be written: .*The credentials are"):
        ensure_writable(f"s3a://other/reports{endpoint}")
