"""Command-line options of the explorer that cannot be used together."""

from __future__ import annotations

import sys

import pytest

from tests.exactly_once.explorer import main


@pytest.mark.parametrize("kinds", [[], ["keyed", "prefixed"]])
@pytest.mark.parametrize("action", [["--every", "0"], ["--replay", "1", "0 kill"]])
def test_rejects_several_kinds_of_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: list[str], kinds: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["explorer", *action, "--jobs", *kinds])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "--every and --replay play a single kind of jobs" in capsys.readouterr().err
