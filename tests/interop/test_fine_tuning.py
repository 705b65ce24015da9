"""A model of another program is fine-tuned with its own subwords, and exported back to its format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

from multihead import Translator, train
from multihead.bundle import SHORTLIST, load_bundle
from multihead.interop.exporting import ExportOptions, export_model
from multihead.translating.adapt import apply_adapter

if TYPE_CHECKING:
    from tests.interop.conftest import Foreign

    from multihead.runs.translator.train import TrainResult

OLD, NEW = "The baker", "The bread man"
"""The terminology that the fine-tuning plants."""


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def used(translator: Translator, sources: list[str]) -> float:
    """Share of sentences whose translation has the planted term."""
    return sum(NEW in text for text in translator.translate(sources)) / len(sources)


def exact(translator: Translator, sources: list[str], targets: list[str]) -> float:
    """Share of sentences that are translated exactly."""
    return sum(a == b for a, b in zip(translator.translate(sources), targets, strict=True)) / len(sources)


@pytest.fixture(scope="module")
def original(foreign: Foreign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MarianMT folder whose model has learned the small language."""
    folder = tmp_path_factory.mktemp("opus")
    foreign.marian(folder, updates=200, encoder_layers=1, decoder_layers=1)
    return folder


def tune(
    original: Path, foreign: Foreign, folder: Path, without_checks: Any, **how: Any
) -> tuple[TrainResult, list[str], list[str]]:
    """Plant a term; returns the run, its messages, and held-out sentences, which the fine-tuning has not seen.

    Sentences with the term must get it, and the others must be translated no worse than before.
    """
    pairs = dict(zip(foreign.sentences(400, 7), foreign.sentences(400, 7, english=True), strict=True))
    planted = {source: target.replace(OLD, NEW) for source, target in pairs.items()}
    own, valid, held = list(planted)[:100], list(planted)[100:130], list(planted)[130:]
    terms = [source for source in held if NEW in planted[source]]
    rest = [source for source in held if NEW not in planted[source]]
    assert len(terms) >= 5
    assert len(rest) > 40
    before = Translator.load(original)
    known = exact(before, rest, [pairs[source] for source in rest])
    assert used(before, terms) == 0

    said: list[str] = []
    with without_checks():
        run = train(
            from_model=original,
            source=write(folder / "own.de", own),
            target=write(folder / "own.en", [planted[source] for source in own]),
            valid_source=write(folder / "valid.de", valid),
            valid_target=write(folder / "valid.en", [planted[source] for source in valid]),
            output=folder / "run",
            **{"seed": 1, "precision": "float32", "threads": 1, "say": said.append, **how},
        )
    tuned = run.translator()
    for side in ("source_tokenizer", "target_tokenizer"):
        assert getattr(tuned.bundle, side).digest == getattr(before.bundle, side).digest
    assert used(tuned, terms) > 0.7
    assert used(tuned, rest) == 0
    assert exact(tuned, rest, [pairs[source] for source in rest]) >= known
    return run, said, held


def test_planted_terminology_is_learned_and_the_rest_stays(
    original: Path, foreign: Foreign, tmp_path: Path, without_checks: Any
) -> None:
    """And the model returns to transformers' layout."""
    run, said, held = tune(original, foreign, tmp_path, without_checks, updates=80, learning_rate=2e-3, warmup=10)
    tuned = run.translator()
    padding = tuned.bundle.model.config.padding_id
    assert any("nothing is resized" in line and f"id {padding}" in line for line in said)
    certificate = export_model(tmp_path / "run", "transformers", tmp_path / "back", ExportOptions(count=20))
    assert certificate.state == "passed"
    assert {"source.spm", "target.spm", "vocab.json"} <= {path.name for path in (tmp_path / "back").iterdir()}
    again = load_bundle(tmp_path / "back")
    assert Translator(again).translate(held[:20]) == tuned.translate(held[:20])


def test_low_rank_adapters_learn_it_too(original: Path, foreign: Foreign, tmp_path: Path, without_checks: Any) -> None:
    """With the chosen rate; embeddings do not change, and adapters have fewer parameters than the model.

    The adapter still fits the model after a shortlist and notes are added to its folder.
    """
    run, said, _ = tune(original, foreign, tmp_path, without_checks, updates=100, lora=4)
    before, after = load_bundle(original).model, run.translator().bundle.model
    for name, weight in before.named_parameters():
        changed = not bool((weight == after.get_parameter(name)).all())
        assert changed == (name.endswith(".weight") and ("projection" in name or "feed_forward." in name)), name
    adapter = load_file(run.folder / "best" / "adapter.safetensors")
    assert sum(tensor.numel() for tensor in adapter.values()) < 0.5 * sum(p.numel() for p in before.parameters())
    assert any("trained are" in line and "of adapters" in line for line in said)
    base = Path(shutil.copytree(original, tmp_path / "base"))
    for name in (SHORTLIST, "README.md"):
        (base / name).write_text("made later", encoding="utf-8")
    again = apply_adapter(base, run.folder, output=tmp_path / "again", say=lambda _: None)
    merged, best = ((folder / "model.safetensors").read_bytes() for folder in (again, run.folder / "best"))
    assert merged == best
