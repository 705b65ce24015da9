"""Document context from the text to the translation: every command puts the same sentences before a line."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multihead.bundle import Bundle, save_bundle
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, Interrupted
from multihead.judging.analysis import analyze_pairs, without_context
from multihead.judging.guard import assess
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.score import score
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.preparing.prepare import prepare
from multihead.runs.best.train import train_best
from multihead.runs.translator.train import train
from multihead.text.context import BREAK, in_context, learn_with_context
from multihead.translating.translator import Translator

NOUNS = {"katze": ("cat", "she"), "hund": ("dog", "he"), "maus": ("mouse", "she"), "igel": ("hedgehog", "he")}
VERBS = {"rennt": "runs", "ruht": "rests", "frisst": "eats"}
LINES = ["ein hund ruht", "das rennt", "das frisst", "", "eine katze rennt", "das ruht", "", "", "das rennt"]
Call = Callable[..., SimpleNamespace]


def write(folder: Path, name: str, documents: int) -> dict[str, Path]:
    """Documents whose first sentence names an animal, which the other sentences refer to by a pronoun."""
    draw, rows = random.Random(name), list[tuple[str, str]]()
    for _ in range(documents):
        noun, verbs = draw.choice(list(NOUNS)), [draw.choice(list(VERBS)) for _ in range(draw.choice((2, 3)))]
        rows.append((f"die {noun} {verbs[0]}", f"the {NOUNS[noun][0]} {VERBS[verbs[0]]}"))
        rows += [(f"das {verb}", f"{NOUNS[noun][1]} {VERBS[verb]}") for verb in verbs[1:]]
        rows.append(("", ""))
    files = {side: folder / f"{name}.{side}" for side in ("source", "target")}
    for place, path in enumerate(files.values()):
        path.write_text("".join(f"{row[place]}\n" for row in rows), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, which reads two sentences of context."""
    tokenizer = learn_with_context([*NOUNS, *VERBS, "das eine ein"] * 3, 330, 2, 60)
    torch.manual_seed(5)
    size = len(tokenizer)
    config = TransformerConfig(
        source_vocab=size, target_vocab=size, width=16, heads=2, inner=32, encoder_layers=1, decoder_layers=1
    )
    made = tmp_path_factory.mktemp("context") / "model"
    search = Search(beam=2, min_length=4, max_length=8)
    save_bundle(made, Bundle(Transformer(config).eval(), tokenizer, tokenizer, search), {}, "test")
    return made


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return Translator.load(folder)


def test_lines_are_translated_in_their_context(folder: Path, translator: Translator, call: Call) -> None:
    given = "".join(f"{line}\n" for line in LINES).encode()
    texts = in_context(translator.bundle.source_tokenizer, LINES)
    found = call("translate", folder, "--scores", given=given)
    wanted = [f"{n}\t{one.score:.4f}\t{one.text}" for n, one in enumerate(translator.translations(texts), 1)]
    assert found.text.splitlines() == wanted
    assert [not text for text in call("translate", folder, given=given).text.split("\n")[:-1]] == [
        not line for line in LINES
    ]
    alone = [translator.translations([text])[0] for text in texts]
    assert [(one.text, one.score) for one in alone] == [(one.text, one.score) for one in translator.translations(texts)]
    # The context decides: without it, or with another one, a line has another score.
    plain = translator.translations(LINES)
    places = [place for place, text in enumerate(texts) if BREAK in text]
    assert all(plain[place].score != alone[place].score for place in places)
    assert alone[1].score != alone[8].score


def test_windows_and_resuming_change_nothing(
    folder: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, given = tmp_path / "in.txt", "".join(f"{line}\n" for line in [*LINES, "das ruht", "das rennt das"] * 3)
    source.write_text(given, encoding="utf-8")
    words = ("translate", folder, "--scores", "--max-source", 12)
    whole = call(*words, given=given.encode())
    monkeypatch.setattr("multihead.lines.windows.WINDOW", 2)
    assert call(*words, given=given.encode()).out == whole.out
    begun: list[int] = []
    from multihead.lines.growing_file import GrowingFile

    append = GrowingFile.append

    def stopped(self: GrowingFile, rows: Any, lines: int) -> None:
        begun.append(lines)
        if len(begun) == 4:
            raise KeyboardInterrupt
        append(self, rows, lines)

    with monkeypatch.context() as until:
        until.setattr(GrowingFile, "append", stopped)
        assert call(*words, "--input", source, "--output", tmp_path / "out").status == 130
    assert call(*words, "--input", source, "--output", tmp_path / "out").status == 0
    assert (tmp_path / "out").read_bytes() == whole.out
    refused = call(*words, "--input", source, "--output", tmp_path / "other", "--engine", "local:1")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "a model with context reads the lines before each one" in refused.err


def test_pairs_are_scored_and_evaluated_in_context(
    folder: Path, translator: Translator, call: Call, tmp_path: Path
) -> None:
    texts, targets = in_context(translator.bundle.source_tokenizer, LINES), [line.upper() for line in LINES]
    pairs = "".join(f"{source}\t{target}\n" for source, target in zip(LINES, targets, strict=True))
    wanted = [f"{one.log_probability:.4f}" for one in score(translator, texts, targets)]
    assert call("score", folder, given=pairs.encode()).text.splitlines() == wanted
    for name, lines in (("source", LINES), ("target", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    assert call("evaluate", folder, *files, "--save", tmp_path / "found").status == 0
    assert (tmp_path / "found").read_text(encoding="utf-8").split("\n")[:-1] == translator.translate(texts)


def test_the_guard_judges_the_sentence_itself(translator: Translator) -> None:
    texts = in_context(translator.bundle.source_tokenizer, LINES[:2])
    copied = [replace(one, text=LINES[n]) for n, one in enumerate(translator.translations(texts))]
    found = assess(translator, texts, copied, GuardSettings(closer=True))
    alone = assess(translator, LINES[:2], copied, GuardSettings())
    assert [one.signs["copy"] for one in found] == [one.signs["copy"] for one in alone]
    assert all({"length", "coverage"}.isdisjoint(one.signs) for one in found)


def test_an_analysis_without_context_has_the_words_of_the_sentence(translator: Translator) -> None:
    tokenizer, text = translator.bundle.source_tokenizer, f"ein hund ruht{BREAK} das rennt"
    (whole,) = analyze_pairs(translator, [text], ["katze ruht"])
    own = without_context(whole, tokenizer.encode(text), tokenizer)
    assert whole.source_words == ["ein", "hund", f"ruht{BREAK}", "das", "rennt"]
    assert own.source_words == ["das", "rennt"]
    assert own.weights == [row[3:] for row in whole.weights or ()]
    assert own.links == [(source - 3, target) for source, target in whole.links if source >= 3]
    (alone,) = analyze_pairs(translator, ["das rennt"], ["katze ruht"])
    assert without_context(alone, tokenizer.encode("das rennt"), tokenizer) is alone


def test_a_text_is_prepared_with_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, "train", 12)
    given: dict[str, Any] = {**files, "context": 2, "held_out": 3, "vocab_size": 300, "say": lambda _: None}
    whole = prepare(**given, output=tmp_path / "whole")
    lines = files["source"].read_text(encoding="utf-8").split("\n")[:-1]
    texts = in_context(whole.source_tokenizer, lines)
    kept = {number: text for number, text in enumerate(texts, 1) if text}
    stored = {int(n): whole.train.source[i].tolist() for i, n in enumerate(whole.train.lines)}
    assert stored == {n: whole.source_tokenizer.encode(kept[n]) for n in stored}
    held = [kept[int(n)] for n in whole.valid.lines]
    assert whole.valid_sources == held
    assert len(stored) + len(held) == len(kept)
    assert "between documents" in (tmp_path / "whole" / "left-out.tsv").read_text(encoding="utf-8")
    monkeypatch.setattr("multihead.preparing.shards.SHARD", 4)
    signals = iter([None, 15])
    with pytest.raises(Interrupted, match="again to continue"):
        prepare(**given, output=tmp_path / "parts", stop_signal=lambda: next(signals, None))
    parts = prepare(**given, output=tmp_path / "parts")
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole" / "data").rglob("*.*")]
    assert len(names) > 4
    for name in names:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert len(parts.train) == len(whole.train)


def test_what_context_cannot_be_had_with(folder: Path, call: Call, tmp_path: Path) -> None:
    files: dict[str, Any] = {**write(tmp_path, "train", 3), "output": tmp_path / "run", "say": lambda _: None}
    others: dict[str, Any] = {
        "placeholders": ("numbers",),
        "terms": "terms.tsv",
        "alignments": "ibm1",
        "from_model": folder,
    }
    for other in ({name: value} for name, value in others.items()):
        with pytest.raises(ConfigurationError, match="context"):
            train(**files, **other, context=1)
    with pytest.raises(ConfigurationError, match="context: a run in stages"):
        train_best(**files, context=1)
    assert not (tmp_path / "run").exists()
    for format_ in ("ctranslate2", "web", "sentencepiece"):
        ended = call("export", folder, "--format", format_, "--output", tmp_path / format_)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "context, the lines before, which only multihead reads" in ended.err


@pytest.mark.proof
def test_a_pronoun_is_translated_by_the_sentence_before(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "width": 32, "heads": 2, "inner": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 300,
        "batch_tokens": 1024, "learning_rate": 0.01, "warmup": 20, "average": 0.9, "precision": "float32", "threads": 1,
        "updates": 250, "validate_every": 250, "seed": 1, "dropout": 0.0, "say": lambda _: None,
    }  # fmt: skip
    own, valid = write(tmp_path, "train", 400), write(tmp_path, "valid", 20)
    files: dict[str, Any] = {**own, **{f"valid_{side}": path for side, path in valid.items()}}
    lines, targets = (path.read_text(encoding="utf-8").split("\n")[:-1] for path in valid.values())
    pronouns = [place for place, line in enumerate(lines) if line.startswith("das")]
    right = []
    for number, context in enumerate((2, None)):
        train(**files, **settings, context=context, output=tmp_path / f"run{number}")
        translator = Translator.load(tmp_path / f"run{number}")
        found = translator.translate(in_context(translator.bundle.source_tokenizer, lines))
        right.append(sum(found[place] == targets[place] for place in pronouns))
    assert right[0] == len(pronouns) > 20
    assert right[1] <= 0.7 * len(pronouns)
