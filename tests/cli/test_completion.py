"""Shell scripts that `pykafka completion` prints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_kafka_sink.cli.completion import SHELLS
from spark_kafka_sink.cli.main import COMMANDS, main


@pytest.mark.parametrize("shell", SHELLS)
def test_script_contains_every_command(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []
    assert "--command-config" in script


def test_bash_accepts_script() -> None:
    program = "from spark_kafka_sink.cli import main; main(['completion', 'bash'])"
    script = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert subprocess.run(["bash", "-n"], input=script, check=False).returncode == 0


def test_prints_error_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert 'pip install "spark-kafka-sink[cli]"' in capsys.readouterr().err
