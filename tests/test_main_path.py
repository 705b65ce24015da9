"""The main path stays short: how many files of the package three everyday calls enter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from multihead.kernels.linear import library_for_this_processor

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "count_files.py"

LIMITS = {"train": 72, "translate": 29, "attention": 9}
"""Ten updates of a prepared corpus, one translated line, and one call of `MultiHeadAttention`."""


def load_tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("count_files", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_everyday_calls_enter_few_files(tmp_path: Path, warm_processes: None) -> None:
    entered: dict[str, list[str]] = load_tool().measure(tmp_path)
    assert entered.keys() == LIMITS.keys()
    # `kernels.products`, on some processors
    own_products = any(library_for_this_processor(half) == "compiled" for half in (False, True))
    limits = {**LIMITS, "train": LIMITS["train"] + own_products}
    too_long = {name: files for name, files in entered.items() if len(files) > limits[name]}
    assert too_long == {}, {name: len(files) for name, files in too_long.items()}
    # The watch works: each call enters the file that does its work.
    assert "training/trainer.py" in entered["train"]
    assert "translating/translator.py" in entered["translate"]
    assert "attention/multihead.py" in entered["attention"]


def test_the_walk_through_the_files_is_short() -> None:
    (walk,) = re.findall(r"^## One sentence pair.*?(?=^## )", (ROOT / "ARCHITECTURE.md").read_text(), re.M | re.S)
    named = set(re.findall(r"`([\w/]+\.(?:py|cpp))`", walk))
    assert [name for name in named if not (ROOT / "src" / "multihead" / name).exists()] == []
    assert 10 < len(named) <= 25
