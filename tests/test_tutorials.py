"""The tutorials run, print what they show, and draw their pictures.

A tutorial is a page of docs/tutorials whose Python blocks are one program. `tools/run_tutorials.py` runs the pages as
notebooks, and writes their outputs and pictures into them. Here, tutorials that train for minutes run with smaller
settings (`SHORT`), and their results are checked instead of their outputs (`FACTS`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if "." not in path.stem and path.stem != "index")

SHORT = {
    "own-translator": ('PAIRS, TEST, BUDGET = 40_000, 500, "8m"', 'PAIRS, TEST, BUDGET = 300, 12, "2s"'),
    "read-attention": ("PAIRS, TEST, UPDATES = 10_000, 200, 300", "PAIRS, TEST, UPDATES = 300, 12, 4"),
}
"""Tutorials that train for minutes: the line that sets the amount, and the line that replaces it in the tests."""

NEEDED = {"opus-mt": ("sentencepiece", "transformers"), "own-translator": ("babel", "fastapi", "uvicorn")}
"""Packages of extras that a tutorial needs."""


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def program(name: str) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the output that is shown below it."""
    text = text_of(name)
    if name in SHORT:
        assert text.count(SHORT[name][0]) == 1
        text = text.replace(*SHORT[name])
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE)
    return [(code, printed or None) for code, printed in blocks]


def pictures(text: str) -> list[str]:
    """The pictures that code writes."""
    return re.findall(r'"images/([\w-]+\.png)"', text)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Path]:
    """A separate folder, one thread, one seed, and no open figures."""
    import matplotlib.pyplot as plt

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with contextlib.chdir(tmp_path):
        yield tmp_path
    torch.set_num_threads(threads)
    plt.close("all")


def run(name: str) -> tuple[list[str], dict[str, Any]]:
    """What each block prints, and the variables at the end."""
    outputs: list[str] = []
    namespace: dict[str, Any] = {"__name__": name}
    for number, (block, _) in enumerate(program(name), 1):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, f"docs/tutorials/{name}.md, block {number}", "exec"), namespace)
        outputs.append(output.getvalue())
    return outputs, namespace


def check_own_translator(made: dict[str, Any]) -> None:
    """The planted faults are found, and four are removed; the server's translation is the translator's."""
    assert {one.code: one.count for one in made["found"].findings if one.code in ("leaked-pairs", "equal-sides")} == {
        "leaked-pairs": 3,
        "equal-sides": 2,
    }
    planted = made["text"]["train"][-5:]
    reasons = Counter(row[1] for row in made["removed"] if (row[4], row[5]) in planted)
    assert reasons == {"leak": 3, "copy": 1}  # the other one has fewer than three words
    kept = [len(Path(f"clean.{code}").read_text(encoding="utf-8").splitlines()) for code in ("de", "en")]
    assert kept == [len(made["text"]["train"]) - len(made["removed"])] * 2
    assert made["run"].updates >= 1
    assert made["total"].total() == len(made["result"].hypotheses) == len(made["text"]["test"])
    assert made["served"] == made["translator"].translate(["20. Mai 2026", "08:05"])


def check_opus_mt(made: dict[str, Any]) -> None:
    """The terms are learned, other translations stay, and `transformers` translates as we do."""
    assert made["before"]["chess"] == 0
    assert made["before"]["everyday"] > 0.8
    assert min(made["after"].values()) > 0.8
    assert json.loads(Path("opus-mt-chess/certificate.json").read_text(encoding="utf-8"))["state"] == "passed"
    theirs = made["tokenizer"].batch_decode(made["found"], skip_special_tokens=True)
    assert theirs == made["Translator"].load("tuned").translate(made["sources"])


def check_read_attention(made: dict[str, Any]) -> None:
    """Weights are distributions, and removing a head changes nothing else."""
    view = made["view"]
    assert view.weights.shape == (4, len(view.rows), len(view.columns))
    assert torch.allclose(view.weights.sum(-1), torch.ones(4, len(view.rows)))
    assert torch.allclose(made["weights"].sum(-1), torch.ones(8, 9))
    last = made["profile"][:, list(made["distances"]).index(3)]
    assert torch.allclose(last, torch.stack([made["weights"][:, i, i + 3] for i in range(5)], 1).mean(1))
    with_all, cut = (translator.bundle.model.state_dict() for translator in (made["translator"], made["without"](6)))
    changed = [name for name in with_all if not torch.equal(with_all[name], cut[name])]
    assert changed == ["encoder.1.self_attention.output_projection.weight"]
    columns = (with_all[changed[0]] != cut[changed[0]]).any(0).nonzero().flatten().tolist()
    assert columns == list(range(32, 48))
    assert len(made["shares"]) == 8
    eight = made["eight"]
    found = made["without"](6).translate(eight, max_length=9)
    share = sum(text == source[::-1] for source, text in zip(eight, found, strict=True)) / len(eight)
    assert made["share_replaced"](6, made["zero_heads"]) == share


FACTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "opus-mt": check_opus_mt,
    "own-translator": check_own_translator,
    "read-attention": check_read_attention,
}
"""Checks that replace the comparison of outputs, which depend on the machine or the size."""


def check_pictures(name: str, folder: Path) -> None:
    """The code draws the pictures that the page shows."""
    drawn = pictures(text_of(name))
    assert drawn
    assert [path for path in drawn if (folder / "images" / path).stat().st_size < 1000] == []
    assert sorted(re.findall(r"\]\(images/([\w-]+\.png)\)", text_of(name))) == sorted(drawn)
    assert [path for path in drawn if not (FOLDER / "images" / path).is_file()] == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_prints_what_it_shows(name: str, apart: Path) -> None:
    missing = [package for package in NEEDED.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: an extra that this tutorial needs")
    outputs, made = run(name)
    for (code, printed), output in zip(program(name), outputs, strict=True):
        if name in FACTS:
            assert bool(output) == (printed is not None), code
        else:
            assert output == (printed or ""), code
    if name in FACTS:
        FACTS[name](made)
    check_pictures(name, apart)


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_in_steps(name: str) -> None:
    """Short steps with headings, at least one equation, and blocks that fit on a screen."""
    text = text_of(name)
    assert len(re.findall(r"^## \d+\. ", text, re.MULTILINE)) >= 5
    assert text.count("\n$$\n") >= 4  # two equations
    assert max(code.count("\n") for code, _ in program(name)) <= 50
