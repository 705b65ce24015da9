"""Compiled code on random shapes: equal to the plain form, no sanitizer reports, failing allocations are handled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest

from multihead.engine.weights import load_search_library
from multihead.kernels.native import levels, load_kernels

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "try_native.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    for found in (load_kernels(), load_search_library()):
        if found.library is None:
            pytest.skip(found.reason)
    words = [sys.executable, str(TOOL), *arguments]
    return processes.run(words, capture_output=True, text=True, check=False)


def test_random_configurations_equal_the_plain_form() -> None:
    done = run("--count", "60", "--first", "20000")
    assert done.returncode == 0, done.stderr
    assert sum(int(line.split()[0]) for line in done.stdout.splitlines()) == 60


@pytest.mark.hostile
def test_sanitizers_report_nothing_and_missing_memory_is_refused() -> None:
    """Ten thousand configurations of both libraries; in half of them allocations fail."""
    if levels.compiler() is None:
        pytest.skip("there is no C++ compiler")
    count = os.environ.get("MULTIHEAD_HOSTILE_CONFIGURATIONS", "10000")
    done = run("--count", count, "--sanitize")
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-8000:]
    assert sum(int(line.split()[0]) for line in done.stdout.splitlines()) == int(count)
    assert "engine, refused without memory" in done.stdout
