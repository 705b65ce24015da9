"""Several directions in one model: the recipe of docs/several-languages.md teaches it the symbols of languages."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator, train
from multihead.bundle import load_bundle
from multihead.configuration import read_toml
from multihead.errors import ConfigurationError
from multihead.planning.settings import read_run
from multihead.preparing.prepared import open_prepared
from multihead.serving.folders import Opened, find_models
from multihead.serving.served_model import Pair
from multihead.serving.settings import ServeSettings
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.languages import Direction, Languages
from multihead.translating.quantise import quantise

PAGE = Path(__file__).resolve().parents[3] / "docs" / "several-languages.md"
WORDS = {
    "en": ["a", "b", "c", "d", "e", "f"],
    "de": ["u", "v", "w", "x", "y", "z"],
    "fr": ["o", "p", "q", "r", "s", "t"],
}
"""Word n of a language translates word n of the others."""
DIRECTIONS = [("de", "en"), ("en", "de"), ("fr", "en"), ("en", "fr")]
SMALL = {"preset": "tiny", "width": 32, "heads": 2, "inner": 64, "encoder_layers": 1, "decoder_layers": 1}
SIZES = {**SMALL, "vocab_size": 300, "batch_tokens": 512, "threads": 1, "device": "cpu", "seed": 1}


def sentence(numbers: list[int], language: str) -> str:
    return " ".join(WORDS[language][number] for number in numbers)


def write(path: Path, source: str, target: str, count: int, seed: int) -> None:
    draw = random.Random(seed)
    rows = [[draw.randrange(6) for _ in range(draw.randint(1, 2))] for _ in range(count)]
    path.write_text("".join(f"{sentence(row, source)}\t{sentence(row, target)}\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, without_checks: Any) -> Path:
    """A run with the recipe of the page, on files with its names."""
    folder = tmp_path_factory.mktemp("recipe")
    (recipe,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "many.toml").write_text(recipe, encoding="utf-8")
    write(folder / "train-de-en-1.tsv", "de", "en", 200, 1)
    write(folder / "train-de-en-2.tsv", "de", "en", 100, 2)
    write(folder / "train-fr-en.tsv", "fr", "en", 200, 3)
    write(folder / "valid-de-en.tsv", "de", "en", 12, 4)
    write(folder / "valid-fr-en.tsv", "fr", "en", 8, 5)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, without_checks():
        patch.chdir(folder)
        train(
            **read_toml(folder / "many.toml"), **SIZES, output=folder / "run", updates=200, validate_every=200,
            learning_rate=0.02, warmup=10, dropout=0.0, smoothing=0.0, average=0.0, say=lambda _: None,
        )  # fmt: skip
    torch.set_num_threads(threads)
    return folder / "run"


def test_the_symbol_decides_which_language_is_written(run: Path) -> None:
    one = Translator.load(run, languages=Languages("de", "en"))
    rows = [[number] for number in range(6)] + [[0, 1], [5, 3], [4, 2]]
    for source, target in DIRECTIONS:
        texts = [sentence(row, source) for row in rows]
        expected = [sentence(row, target) for row in rows]
        assert one.toward(Languages(source, target)).translate(texts) == expected
    # English has two targets: the same text, and another symbol.
    text = sentence([0, 1], "en")
    found = {code: one.toward(Languages(target=code)).translate([text])[0] for code in ("de", "fr")}
    assert found == {code: sentence([0, 1], code) for code in ("de", "fr")}


def test_another_direction_has_no_reverse_model_and_no_judge(run: Path) -> None:
    """Those of the first direction would score sentences in other languages."""
    one = Translator.load(run, languages=Languages("de", "en"))
    back = one.toward(Languages("en", "de"))
    chosen = one.with_reverse(back).with_judge(one)
    assert (chosen.reverse, chosen.judge) == (back, one)
    other = chosen.toward(Languages("en", "fr"))
    assert (other.reverse, other.judge) == (None, None)
    assert (chosen.reverse, chosen.judge) == (back, one)


def test_a_direction_is_asked_for(run: Path) -> None:
    assert Translator.load(run, languages=Languages(source="fr")).bundle.target_language == "en"
    assert Translator.load(run, languages=Languages(target="EN")).bundle.source_language is None
    for languages in (None, Languages(source="en")):
        with pytest.raises(ConfigurationError, match="this model translates de-en, en-de, fr-en, en-fr; say which"):
            Translator.load(run, languages=languages)
    for languages in (Languages("de", "fr"), Languages("it"), Languages(None, "it")):
        with pytest.raises(ConfigurationError, match=r"not translate .*; it translates de-en, en-de, fr-en, en-fr"):
            Translator.load(run, languages=languages)


def test_every_direction_is_validated(run: Path) -> None:
    config = read_run(run)
    assert config is not None
    assert [(d.source, d.target, d.valid) for d in config.data.directions] == [
        ("de", "en", 12), ("en", "de", 12), ("fr", "en", 8), ("en", "fr", 8),
    ]  # fmt: skip
    assert "language_symbols" in config.reasons
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    found = next(row for row in rows if "bleu_de-en" in json.dumps(row))
    text = json.dumps(found)
    assert all(f'"bleu_{source}-{target}"' in text for source, target in DIRECTIONS)
    prepared = open_prepared(run, config.data)
    symbols = {code: prepared.source_tokenizer.id_of(code) for code in ("de", "en", "fr")}
    for direction, place in prepared.valid_parts:
        assert direction is not None
        for index in range(place.start, place.stop):
            source, target = (getattr(prepared.valid, side)[index].tolist() for side in ("source", "target"))
            assert source[0] == symbols[direction.target]
            assert not {*source[1:], *target} & {*symbols.values()}
            text = prepared.valid_sources[index]
            assert set(text.split()) <= {*WORDS[str(direction.source)]}


def test_every_training_source_begins_with_the_symbol_of_its_target(run: Path) -> None:
    config = read_run(run)
    assert config is not None
    prepared, start = open_prepared(run, config.data), 0
    assert isinstance(prepared.source_tokenizer, LanguageTokenizer)
    assert prepared.source_tokenizer.digest == prepared.target_tokenizer.digest  # a shared vocabulary
    corpora = config.data.corpora
    names = [(Path(c.files[0].path).name, c.source_language, c.target_language, c.reversed) for c in corpora]
    assert names == [
        ("train-de-en-1.tsv", "de", "en", False), ("train-de-en-2.tsv", "de", "en", False),
        ("train-de-en-1.tsv", "en", "de", True), ("train-de-en-2.tsv", "en", "de", True),
        ("train-fr-en.tsv", "fr", "en", False), ("train-fr-en.tsv", "en", "fr", True),
    ]  # fmt: skip
    for corpus in corpora:
        symbol = prepared.source_tokenizer.id_of(str(corpus.target_language))
        assert {int(prepared.train.source[i][0]) for i in range(start, start + corpus.pairs)} == {symbol}
        start += corpus.pairs
    # n^(1/5) over directions: 300 and 200 pairs.
    shares = [corpus.pairs * corpus.weight for corpus in corpora]
    assert (shares[0] + shares[1]) / shares[4] == pytest.approx(1.5 ** (1 / 5))


def test_the_model_stays_one_of_several_directions(run: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run)
    assert bundle.directions == tuple(Direction(*pair) for pair in DIRECTIONS)
    assert (bundle.source_tokenizer.prefix, bundle.target_language) == ((), None)
    quantise(run, output=tmp_path / "small", precision="bfloat16", say=lambda _: None)
    one, other = (Translator.load(folder, languages=Languages("en", "fr")) for folder in (run, tmp_path / "small"))
    text = [sentence([3, 4], "en")]
    assert one.translate(text) == other.translate(text) == [sentence([3, 4], "fr")]


def test_the_server_offers_every_direction_with_one_network(run: Path) -> None:
    sources = find_models({None: run}, {}, "cpu", ServeSettings())
    assert [source.pair for source in sources] == [Pair(*pair) for pair in DIRECTIONS]
    first, second = sources[0].load(), sources[1].load()
    assert first.translate([sentence([1, 2], "de")]) == [sentence([1, 2], "en")]
    assert second.translate([sentence([1, 2], "en")]) == [sentence([1, 2], "de")]
    assert first.bundle.model is second.bundle.model
    # Unused models are not kept.
    opened = Opened()
    loaded = opened.load(run, Pair("de", "en"), "cpu")
    assert len(opened._models) == 1
    del loaded
    assert len(opened._models) == 0
