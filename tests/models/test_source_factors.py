"""Case as a source factor in the network: a sum of two embeddings, in training and in every search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multihead.bundle import Bundle, load_bundle, save_bundle
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, Interrupted
from multihead.models.config import TransformerConfig
from multihead.models.factors import FactoredEmbedding
from multihead.models.transformer import Transformer
from multihead.runs.best.train import train_best
from multihead.runs.translator.train import train
from multihead.text.case_factors import FACTORS, CaseTokenizer, lowered
from multihead.text.tokenizer import Tokenizer
from multihead.translating.translator import Translator

WORDS = ["hund", "maus", "igel", "katze", "rose", "wald", "haus", "bach", "berg", "stern", "mond", "kind"]
LATE = WORDS[6:]
"""Words that training has in lower case alone."""
LINES = [" ".join(WORDS[n : n + 4]) for n in range(9)]
SENTENCES = ["Der HUND rennt", "die Maus ruht, igel", "KATZE", "rOSe wald", "Haus"]
SIZES: dict[str, Any] = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture
def unchecked(without_checks: Callable[[], Any]) -> Iterator[None]:
    with without_checks():
        yield


def translator(**sizes: Any) -> Translator:
    """A translator with random weights."""
    source, target = CaseTokenizer(Tokenizer.learn(LINES * 3, 320)), Tokenizer.learn(["AB ab"] * 3, 300)
    torch.manual_seed(3)
    config = TransformerConfig(
        source_vocab=len(source), target_vocab=len(target), factors=FACTORS, tie_embeddings=False, **SIZES, **sizes
    )
    search = Search(beam=3, min_length=3, max_length=8)
    return Translator(Bundle(Transformer(config).eval(), source, target, search))


def test_an_embedding_with_factors_is_a_sum() -> None:
    torch.manual_seed(1)
    table, ids = FactoredEmbedding(20, 4, 6, 0), torch.tensor([[3, 8, 14, 0], [19, 2, 5, 5]])
    sums = table.pieces.weight[ids % 5] + table.factors.weight[ids // 5]
    assert torch.equal(table(ids), sums)
    assert torch.equal(table.weight[ids], sums)
    table(ids).sum().backward()
    assert table.pieces.weight.grad is not None
    assert table.factors.weight.grad is not None
    assert table.pieces.weight.grad.count_nonzero(1).tolist() == [0, 0, 6, 6, 6]  # 0 is padding
    assert table.factors.weight.grad.count_nonzero(1).tolist() == [0, 6, 6, 6]  # factor 0 is none


@pytest.mark.parametrize("sizes", [{"factors": 3}, {"factors": 2, "tie_embeddings": True}])
def test_factors_divide_a_vocabulary_of_its_own(sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="factors must divide the 20 entries"):
        TransformerConfig(**{"source_vocab": 20, "target_vocab": 20, "tie_embeddings": False, **sizes})


def test_without_their_embeddings_a_text_is_translated_as_in_lower_case() -> None:
    cased, lower = translator(), list(map(lowered, SENTENCES))
    with torch.no_grad():
        assert [one.score for one in cased.translations(SENTENCES)] != [one.score for one in cased.translations(lower)]
        own = cased.bundle.model
        assert isinstance(own, Transformer)
        assert isinstance(own.source_embedding.table, FactoredEmbedding)
        own.source_embedding.table.factors.weight.zero_()
    assert cased.translations(SENTENCES) == cased.translations(lower)
    # A network without factors and with the same pieces gives the same result.
    plain = Transformer(
        own.config.model_copy(update={"factors": 1, "source_vocab": own.config.source_vocab // FACTORS})
    ).eval()
    weights = dict(own.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(
                weights[name.replace("source_embedding.table.weight", "source_embedding.table.pieces.weight")]
            )
    inner = cased.bundle.source_tokenizer
    assert isinstance(inner, CaseTokenizer)
    same = Translator(Bundle(plain, inner.inner, cased.bundle.target_tokenizer, cased.bundle.generation))
    assert same.translations(lower) == cased.translations(SENTENCES)


@pytest.mark.parametrize("sizes", [{}, {"embedding_norm": True, "norm": "pre", "positions": "rotary"}])
def test_the_compiled_search_reads_factors(sizes: dict[str, Any]) -> None:
    found = translator(**sizes)
    if not found.compiled:
        pytest.skip("there is no compiler")
    plain = found.searching(groups=1, no_repeat=9)  # which is not compiled, and has no effect on 8 tokens
    for one, other in zip(found.translations(SENTENCES), plain.translations(SENTENCES), strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)
    alone = [found.translations([text])[0] for text in SENTENCES]
    assert [one.text for one in alone] == [one.text for one in found.translations(SENTENCES)]


def test_a_model_with_factors_is_saved_explained_and_not_exported(
    tmp_path: Path, call: Callable[..., SimpleNamespace]
) -> None:
    found = translator()
    save_bundle(tmp_path / "model", found.bundle, {}, "test")
    again = Translator(load_bundle(tmp_path / "model"))
    assert again.translations(SENTENCES) == found.translations(SENTENCES)
    assert "Der HUND" in call("explain", tmp_path / "model", "Der HUND", "--json").text
    scored = call("score", tmp_path / "model", given=b"Der HUND\tab\nder hund\tab\n").text.split()
    assert scored[0] != scored[1]
    for form in ("ctranslate2", "web"):
        ended = call("export", tmp_path / "model", "--format", form, "--output", tmp_path / form)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "case as a source factor, which only multihead reads" in ended.err


def write(folder: Path, name: str, rows: list[tuple[str, str]]) -> dict[str, Path]:
    files = {side: folder / f"{name}.{side}" for side in ("source", "target")}
    for place, path in enumerate(files.values()):
        path.write_text("".join(f"{row[place]}\n" for row in rows), encoding="utf-8")
    return files


def pairs(words: list[str], count: int, seed: int, *, cased: bool) -> list[tuple[str, str]]:
    """Words in some case, each followed on the other side by what its case means."""
    draw, rows = random.Random(seed), list[tuple[str, str]]()
    for _ in range(count):
        row = []
        for word in draw.choices(words, k=draw.randint(1, 3)):
            case = draw.randrange(3) if cased else 0
            row.append(((word, word.capitalize(), word.upper())[case], f"{word[::-1]} {('a', 'b', 'c')[case]}"))
        rows.append((" ".join(source for source, _ in row), " ".join(target for _, target in row)))
    return rows


def test_a_run_goes_on_with_factors(tmp_path: Path, unchecked: None) -> None:
    files = write(tmp_path, "train", pairs(WORDS, 60, 1, cased=True))
    wishes: dict[str, Any] = {
        **files, **SIZES, "source_factors": "case", "vocab_size": 300, "updates": 3, "validate_every": 3, "threads": 1,
        "held_out": 5, "batch_tokens": 256, "precision": "float32", "say": lambda _: None, "seed": 1,
    }  # fmt: skip
    train(**wishes, output=tmp_path / "whole")
    polls = iter([None] * 3)
    with pytest.raises(Interrupted):
        train(**wishes, output=tmp_path / "parts", stop_signal=lambda: next(polls, 15))
    train(**wishes, output=tmp_path / "parts")
    models = [load_bundle(tmp_path / name) for name in ("whole", "parts")]
    for one, other in zip(*(bundle.model.parameters() for bundle in models), strict=True):
        assert torch.equal(one, other)
    assert isinstance(models[0].source_tokenizer, CaseTokenizer)
    assert models[0].target_tokenizer.factors == 1
    train(
        **{**wishes, "source_factors": None, "vocab_size": None, "updates": 1},
        from_model=tmp_path / "whole",
        output=tmp_path / "tuned",
    )
    assert load_bundle(tmp_path / "tuned").source_tokenizer.digest == models[0].source_tokenizer.digest


def test_what_factors_cannot_be_had_with(tmp_path: Path) -> None:
    files: dict[str, Any] = {**write(tmp_path, "train", pairs(WORDS, 9, 1, cased=True)), "say": lambda _: None}
    others: dict[str, Any] = {
        "placeholders": ("numbers",), "shared_vocabulary": True, "bpe_dropout": 0.1, "model": "recurrent",
        "tie_embeddings": True,
    }  # fmt: skip
    for name, value in others.items():
        with pytest.raises(ConfigurationError, match="factors"):
            train(**{**files, name: value}, source_factors="case", output=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="source_factors: a run in stages"):
        train_best(**files, source_factors="case", output=tmp_path / "run")
    directions = [f"{files['source']} {files['target']} source_language=de target_language=en both_ways=true"]
    with pytest.raises(ConfigurationError, match="source_factors: the text has several target languages"):
        train(corpus=directions, source_factors="case", output=tmp_path / "run", say=lambda _: None)


@pytest.mark.proof
def test_words_are_known_in_a_case_that_training_did_not_have(tmp_path: Path, unchecked: None) -> None:
    rows = pairs(WORDS[:6], 500, 1, cased=True) + pairs(WORDS, 500, 2, cased=False)
    files: dict[str, Any] = write(tmp_path, "train", rows)
    wishes: dict[str, Any] = {
        **files, "width": 32, "heads": 2, "inner": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 330,
        "batch_tokens": 1024, "learning_rate": 0.01, "warmup": 20, "average": 0.9, "precision": "float32", "threads": 1,
        "updates": 500, "validate_every": 100, "seed": 1, "dropout": 0.0, "held_out": 20, "say": lambda _: None,
    }  # fmt: skip
    early, late = (pairs(words, 60, 3, cased=True) for words in (WORDS[:6], LATE))
    late = [row for row in late if lowered(row[0]) != row[0]]
    right = []
    for name, factors in (("factors", "case"), ("plain", None)):
        train(**wishes, source_factors=factors, output=tmp_path / name)
        found = Translator.load(tmp_path / name)
        known, unknown = (found.translate([source for source, _ in rows]) for rows in (early, late))
        right.append(
            (
                sum(one == target for one, (_, target) in zip(known, early, strict=True)),
                sum(one.split()[::2] == target.split()[::2] for one, (_, target) in zip(unknown, late, strict=True)),
            )
        )
    assert right[0][0] >= 0.9 * len(early)
    assert right[0][1] >= 0.5 * len(late)
    assert right[1][1] <= 0.1 * len(late)
