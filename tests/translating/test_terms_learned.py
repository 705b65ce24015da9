"""A model that was trained with terms writes the wanted translation, in the form that the sentence needs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multihead import evaluate
from multihead.bundle import Bundle, save_bundle
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.judging.guard import assess, retry, translate_guarded
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.term_use import term_use
from multihead.lines.windows import translate_texts
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.planning.settings import Choices, TrainSettings
from multihead.preparing.subwords import choose_terms
from multihead.runs.best.train import train_best
from multihead.runs.translator.train import train
from multihead.text.terms import parse_terms
from multihead.text.tokenizer import Tokenizer
from multihead.translating.request import TranslationRequest
from multihead.translating.translator import Translator

NOUNS = {"bak": ("bank", "bench", "pew"), "sal": ("lock", "castle", "fort"), "tor": ("gate", "goal", "fool")}
"""Words with three translations each; only the list of terms says which one is correct."""
COUNTS = {"ein": ("one", ""), "zwei": ("two", "s"), "drei": ("three", "s")}
"""The rule of the target language: a plural has an s."""
LIST = [f"{noun}\t{lemma}" for noun, lemmas in NOUNS.items() for lemma in lemmas]


SETTINGS: dict[str, Any] = {
    "width": 32, "heads": 2, "inner": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 330,
    "batch_tokens": 512, "learning_rate": 0.015, "warmup": 20, "average": 0.9, "precision": "float32", "threads": 1,
    "updates": 100, "validate_every": 100, "seed": 1, "dropout": 0.0,
}  # fmt: skip


def pair(count: str, noun: str, lemma: str) -> tuple[str, str]:
    return f"{count} {noun}", f"{COUNTS[count][0]} {lemma}{COUNTS[count][1]}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, without_checks: Any) -> Path:
    folder, draw = tmp_path_factory.mktemp("terms"), random.Random(1)
    seen = [(c, n, one) for c in COUNTS for n, lemmas in NOUNS.items() for one in lemmas]
    for name, size in (("train", 900), ("valid", 12)):
        pairs = [[pair(*draw.choice(seen)) for _ in range(draw.randint(1, 2))] for _ in range(size)]
        for side, place in (("source", 0), ("target", 1)):
            lines = [", ".join(one[place] for one in row) for row in pairs]
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "terms.tsv").write_text("".join(f"{line}\n" for line in LIST), encoding="utf-8")
    files = {
        f"{'' if n == 'train' else 'valid_'}{s}": folder / f"{n}.{s}"
        for n in ("train", "valid")
        for s in ("source", "target")
    }
    with without_checks():
        train(**files, **SETTINGS, terms=folder / "terms.tsv", output=folder / "run", say=lambda _: None)
    return folder


def test_wanted_translations_are_inflected(run: Path) -> None:
    translator = Translator.load(run / "run")
    cases = [(count, noun, lemma) for count in COUNTS for noun, lemmas in NOUNS.items() for lemma in lemmas]
    exact, plurals, without = 0, 0, 0
    for case in cases:
        source, target = pair(*case)
        wanted = parse_terms([f"{case[1]}\t{case[2]}"])
        found = translator.run(TranslationRequest(translator.search_settings(), [source], terms=wanted))[0][0].text
        exact += found == target
        plurals += found.endswith("s") == target.endswith("s")
        without += translator.translate([source]) == [target]
    assert without <= len(cases) / 3  # the same translation of each source, whichever term is requested
    assert exact >= 0.8 * len(cases)
    assert plurals >= 0.9 * len(cases)


def test_the_command(run: Path, call: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text("bak\tbench\n", encoding="utf-8")
    given = b"zwei bak\nein tor\n"
    ended = call("translate", run / "run", "--terms", tmp_path / "own.tsv", given=given)
    translator, wanted = Translator.load(run / "run"), parse_terms(["bak\tbench"])
    request = TranslationRequest(translator.search_settings(), ["zwei bak", "ein tor"], terms=wanted)
    assert (ended.status, ended.text) == (0, "".join(f"{row[0].text}\n" for row in translator.run(request)))
    plain = translator.translate(["zwei⟨term⟩ bak⟨as⟩ bench⟨/term⟩", "ein tor"])
    assert ended.text == "".join(f"{text}\n" for text in plain)
    plain_tokenizer = Tokenizer.learn(["a b"] * 9, 270)
    size = len(plain_tokenizer)
    config = TransformerConfig(
        source_vocab=size, target_vocab=size, width=8, heads=1, inner=8, encoder_layers=1, decoder_layers=1
    )
    bundle = Bundle(Transformer(config), plain_tokenizer, plain_tokenizer, Search())
    save_bundle(tmp_path / "other", bundle, {}, "Untrained.")
    other = call("translate", tmp_path / "other", "--terms", tmp_path / "own.tsv", given=given)
    assert (other.status, other.out, other.err.count("\n")) == (2, b"", 1)
    assert "this model was trained without them (train --terms FILE)" in other.err
    (tmp_path / "bad.tsv").write_text("bak bench\n", encoding="utf-8")
    assert "bad.tsv:1: expected a term" in call("translate", run / "run", "--terms", tmp_path / "bad.tsv").err
    resumed = tmp_path / "in.txt"
    resumed.write_bytes(given)
    written = call(
        "translate", run / "run", "--input", resumed, "--output", tmp_path / "out", "--terms", tmp_path / "own.tsv"
    )
    assert (written.status, (tmp_path / "out").read_bytes()) == (0, ended.out)


def test_the_guard_reads_the_source_with_its_terms(run: Path) -> None:
    """As if they were typed by the user, and again for sentences that are searched again."""
    translator, wanted = Translator.load(run / "run"), parse_terms(["bak\tbench", "tor\tgoal"])
    texts, search = ["zwei bak", "ein tor, drei bak"], translator.search_settings()
    asked = TranslationRequest(search, texts, terms=wanted)
    typed = TranslationRequest(search, [wanted.annotate(text) for text in texts])
    settings = GuardSettings(closer=True)
    found, expected = (translate_texts(translator, request, settings) for request in (asked, typed))
    for own, other in zip(found, expected, strict=True):
        for name in ("doubt", "surprise", "coverage"):
            assert own.guarded[0].signs[name] == pytest.approx(other.guarded[0].signs[name], abs=1e-4), name
    assert translate_guarded(translator, texts, terms=wanted, settings=settings) == [one.guarded[0] for one in found]
    suspicious = [replace(one.guarded[0], score=1.0, marked=True) for one in found]
    again = retry(translator, asked, suspicious, GuardSettings(mode="retry", closer=True, beam=2, samples=2))
    for text, one in zip(texts, again, strict=True):
        (alone,) = assess(translator, [text], [one.translation], settings, wanted)
        assert one.first is not None
        assert one.signs == pytest.approx(alone.signs, abs=1e-4)


def test_what_terms_cannot_be_had_with(run: Path, tmp_path: Path) -> None:
    files = {side: run / f"train.{side}" for side in ("source", "target")}
    with pytest.raises(ConfigurationError, match="the given model was trained without"):
        choose_terms(Choices(TrainSettings(terms=run / "terms.tsv")), Tokenizer.learn(["a b"] * 9, 270))
    with pytest.raises(ConfigurationError, match="terms: a run in stages"):
        train_best(**files, terms=run / "terms.tsv", output=tmp_path / "best", say=lambda _: None)
    (tmp_path / "links").write_text("0-0\n" * 900, encoding="utf-8")
    own = {**SETTINGS, "terms": run / "terms.tsv", "alignments": tmp_path / "links"}
    with pytest.raises(ConfigurationError, match="the words of this text are not those of its files"):
        train(**files, **own, output=tmp_path / "guided", say=lambda _: None)


def test_evaluate_counts_the_terms_that_came_out(
    run: Path, call: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    """Counts the model's own translations with terms and a second system's file; any form of a term counts."""
    (source := tmp_path / "test.de").write_text("zwei bak, ein tor\nein sal\n\ndrei tor\n", encoding="utf-8")
    (target := tmp_path / "test.en").write_text("two pews, one fool\none fort\n\nthree goals\n", encoding="utf-8")
    (other := tmp_path / "other.en").write_text("two Pews, one gate\none lock\n\nthree goals\n", encoding="utf-8")
    (own := tmp_path / "own.tsv").write_text("bak\tpew\ntor\tgoal\nsal\tfort\n", encoding="utf-8")
    files = ("--source", source, "--target", target, "--resamples", 40)
    ended = call("evaluate", run / "run", *files, "--terms", own, "--against", other, "--save", tmp_path / "out.en")
    lines = source.read_text(encoding="utf-8").split("\n")[:-1]
    translator, wanted = Translator.load(run / "run"), parse_terms(own.read_text(encoding="utf-8").split("\n"))
    request = TranslationRequest(translator.search_settings(), lines, terms=wanted)
    outputs = [row[0].text for row in translator.run(request)]
    assert (tmp_path / "out.en").read_text(encoding="utf-8").split("\n")[:-1] == outputs
    assert f"{other}: 2 of 4 terms came out (50.0%)\n" in ended.text
    assert f"{run / 'run'}: {term_use(wanted, lines, outputs)}\n" in ended.text
    asked = TranslationRequest(translator.search_settings(), terms=wanted)
    found = evaluate(translator, source, target, request=asked, against=other, resamples=40)
    content = json.loads(json.dumps(found.as_dict()))
    assert content["terms"][1] == {"found": 4, "used": 2, "missing": [[1, "tor", "goal"], [2, "sal", "fort"]]}
    assert content["terms"][0] == term_use(wanted, lines, outputs).as_dict()
