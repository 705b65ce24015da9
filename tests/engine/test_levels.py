"""Every level of instructions computes the same: those of this processor, and AVX-VNNI where it is emulated.

`make test` runs the lowest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest

from multihead.decoding.beam import beam_search
from multihead.engine.search import Engine
from multihead.engine.weights import PRECISIONS, load_search_library
from multihead.kernels.native import VARIABLE, clear_loaded, levels
from multihead.platforms import processor

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "try_native.py"
LEVELS = levels.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="no level is known of this architecture")


@pytest.fixture(params=[pytest.param(level, marks=[pytest.mark.wheel] * (level != LEVELS[0])) for level in LEVELS])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each level in turn, as the highest one that is allowed."""
    found: levels.Level = request.param
    missing = [feature for feature in found.features if feature not in processor().features]
    if missing:
        pytest.skip(f"this processor has no {missing[0]}, which {found.name} needs")
    monkeypatch.setenv(levels.VARIABLE, found.name)
    monkeypatch.setenv(VARIABLE, "1")
    clear_loaded()
    yield found.name
    clear_loaded()


def asked(drawn: Any) -> tuple[list[list[int]], Any]:
    """Sentences, and the settings of a search for them."""
    sources = drawn.sentences(12)
    limits, least = drawn.limits(sources)
    settings = {"max_lengths": limits, "min_lengths": least, "beam": 4, "n_best": 2}
    return sources, drawn.split(drawn.symbols, **settings)


def test_the_search_of_a_level_is_that_of_pytorch(drawn: Any, kind: str, level: str, without_checks: Any) -> None:
    assert load_search_library().level == level
    model = drawn.model(kind)
    sources, settings = asked(drawn)
    with without_checks():
        expected = beam_search(model, *drawn.padded(sources), *settings)
    found = Engine(model).search(sources, *settings, workers=2)
    same = [drawn.alike(one, other) for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 1  # a near tie


@pytest.mark.parametrize("precision", [one for one in PRECISIONS if one != "float32"])
def test_a_level_rounds_as_this_processors_own_instructions_do(
    drawn: Any, level: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number halfway between two steps may be rounded the other way."""
    model = drawn.model("pre-norm")
    sources, settings = asked(drawn)
    found = Engine(model, precision).search(sources, *settings)
    monkeypatch.delenv(levels.VARIABLE)
    clear_loaded()
    own = Engine(model, precision).search(sources, *settings)
    for one, other in zip(found, own, strict=True):
        assert drawn.alike(one, other, 0.02)


def test_random_configurations_of_a_level_equal_the_plain_form(level: str) -> None:
    """The kernels of an update, and the search alone and in company."""
    words = [sys.executable, str(TOOL), "--count", "40", "--first", "30000"]
    done = processes.run(words, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert sum(int(line.split()[0]) for line in done.stdout.splitlines()) == 40


EMULATED = """
import json, sys
from multihead import platforms
from multihead.kernels import native
here = platforms.processor()
native.processor = lambda: platforms.Processor(here.facts, here.features | {"avx_vnni"})
import torch
from multihead.engine.search import Engine
from multihead.engine.weights import load_search_library
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask

torch.manual_seed(1)
found = [load_search_library().level]
# Words of a row are odd and even in number, rows have negative numbers or none, and there are one to many of them.
for width, inner, feed_forward in ((64, 128, "relu"), (36, 44, "gelu")):
    config = TransformerConfig(
        source_vocab=90, target_vocab=90, width=width, heads=2, inner=inner, encoder_layers=1, decoder_layers=1,
        feed_forward=feed_forward,
    )
    engine = Engine(Transformer(config).eval(), "int8")
    for sources in ([[5, 9, 3]], [[number + 4, 80 - number, 50, 3][number % 3 :] for number in range(12)]):
        for beam in (1, 3):
            task = SearchTask(Symbols(2, 3, (0, 1, 2)), max_lengths=[6] * len(sources))
            hypotheses = engine.search(sources, task, Search(beam=beam))
            found.append([[[[*map(int, one.tokens)], one.score] for one in row] for row in hypotheses])
print(json.dumps(found))
"""


@pytest.mark.wheel
def test_avx_vnni_computes_what_avx2_does_to_the_last_bit(tmp_path: Path) -> None:
    """These instructions are emulated on a processor without them."""
    features = processor().features
    if "avx2" not in features or not sys.platform.startswith("linux"):
        pytest.skip("AVX2 and Linux are needed")
    emulator = tmp_path / "avx_vnni.so"
    source = Path(__file__).resolve().parent.parent / "support" / "avx_vnni.cpp"
    subprocess.run(["g++", "-std=c++17", "-O2", "-fPIC", "-shared", source, "-o", emulator], check=True)
    found = {}
    for level in ("avx2", "avx-vnni"):
        environment = {**os.environ, levels.VARIABLE: level, VARIABLE: "1", "OMP_NUM_THREADS": "1"}
        if level == "avx-vnni" and "avx_vnni" not in features:
            environment["LD_PRELOAD"] = str(emulator)
        words = [sys.executable, "-c", EMULATED]  # not `processes.run`, which would not preload into its fork
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        used, *found[level] = json.loads(done.stdout)
        assert used == level
    assert found["avx-vnni"] == found["avx2"]
    assert len(found["avx2"]) == 8
