"""Completion by the shell: the scripts are made, and complete commands, flags, values and files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from multihead.cli.main import main

Complete = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """The kind and the text of each completion of the last word, as bash gets them."""

    def run(*words: str) -> list[tuple[str, str]]:
        monkeypatch.setenv("_MULTIHEAD_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["multihead", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 0
        rows = [line.partition(",") for line in capsys.readouterr().out.splitlines()]
        return [(kind, text) for kind, _, text in rows]

    return run


def test_a_command_is_completed(complete: Complete) -> None:
    assert complete("tra") == [("plain", "train"), ("plain", "translate")]
    assert complete("bpe", "l") == [("plain", "learn")]
    assert ("plain", "--version") in complete("--v")


def test_a_flag_is_completed(complete: Complete) -> None:
    assert complete("train", "--bud") == [("plain", "--budget")]
    assert ("plain", "--no-certificate") in complete("export", "run", "--no")


def test_a_value_is_completed(complete: Complete) -> None:
    assert complete("export", "run", "--format", "ct") == [("plain", "ctranslate2")]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("translate", "ru"), "file"),
        (("translate", "run", "--input", "bo"), "file"),
        (("train", "--source", "tr"), "file"),
        (("train", "--output", "ru"), "dir"),
        (("serve", "ru"), "dir"),
    ],
)
def test_a_file_is_left_to_the_shell(complete: Complete, words: tuple[str, ...], kind: str) -> None:
    assert complete(*words) == [(kind, words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_made(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_MULTIHEAD_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert f"_MULTIHEAD_COMPLETE={shell}_complete" in script
    assert "multihead" in script.splitlines()[0] + script.splitlines()[-1]


def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    """The line of the documentation, in a bash that finds the program ``multihead``."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    (tmp_path / "multihead").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m multihead "$@"\n')
    (tmp_path / "multihead").chmod(0o755)
    script = f"""
        PATH="{tmp_path}:$PATH"
        eval "$(_MULTIHEAD_COMPLETE=bash_source multihead)"
        COMP_WORDS=(multihead backt) COMP_CWORD=1
        _multihead_completion multihead
        echo "${{COMPREPLY[@]}}"
        complete -p multihead
    """
    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, check=True)
    completed, registered = done.stdout.splitlines()
    assert completed == "backtranslate"
    assert "_multihead_completion" in registered
