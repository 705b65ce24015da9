"""Every number of an explanation is confirmed by another computation."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from multihead import Translator, explain
from multihead.bundle import Bundle
from multihead.decoding.recording import Fate
from multihead.decoding.search import Search
from multihead.engine.search import Engine
from multihead.errors import ConfigurationError, InputError
from multihead.inspection.explanation import format_percent
from multihead.judging import alternatives
from multihead.judging.align import align
from multihead.judging.analysis import PairAnalysis, analyze_pairs
from multihead.judging.score import score
from multihead.judging.selftest import NetworkWrapper
from multihead.models.config import RecurrentConfig
from multihead.models.network import AttentionWeights, Network, Output
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.text.backwards import BackwardsTokenizer
from multihead.text.foreign import SpecialIds
from multihead.text.vocabulary import starts_with_space
from multihead.text.word_pieces import WordPieceTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "eins sieben zwei acht"


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def recurrent(translator: Translator) -> Translator:
    """A model of another kind, untrained, whose output is arbitrary."""
    size = len(translator.bundle.target_tokenizer)
    torch.manual_seed(5)
    network = RecurrentTranslator(RecurrentConfig(source_vocab=size, target_vocab=size, width=16))
    return Translator(replace(translator.bundle, model=network.eval()))


@pytest.fixture(scope="module")
def of_pieces() -> Translator:
    """An untrained model with a list of pieces that mark the ends of words."""
    pieces = [f"{text}{after}" for text in ("a", "be", "cat", "do") for after in ("", "@@")]
    tokenizer = WordPieceTokenizer(["<blank>", "<unk>", "<s>", "</s>", *pieces], SpecialIds(pad=0, unk=1, bos=2, eos=3))
    size = len(tokenizer)
    torch.manual_seed(5)
    network = RecurrentTranslator(RecurrentConfig(source_vocab=size, target_vocab=size, width=16))
    return Translator(Bundle(network.eval(), tokenizer, tokenizer, Search()))


class Blind(NetworkWrapper):
    """A model without attention to the source."""

    def forward(self, source: Any, source_lengths: Any, target: Any, *, need_weights: bool = False) -> Output:
        output = super().forward(source, source_lengths, target, need_weights=need_weights)
        return Output(output.logits, AttentionWeights((), (), ()))


@pytest.mark.parametrize(
    "settings",
    [{}, {"beam": 1}, {"beam": 4, "groups": 2}, {"no_repeat": 2, "alpha": 0.4}, {"stopping": "ahead"}],
    ids=["own", "greedy", "groups", "restricted", "ahead"],
)
def test_what_is_explained_is_what_is_translated(
    translator: Translator, recurrent: Translator, settings: dict[str, Any]
) -> None:
    """Every search, compiled or not, finds what the recorded search finds."""
    for one in (translator.searching(**settings), recurrent.searching(**settings, max_length=12)):
        explained = explain(one, TEXT)
        (translation,) = one.translations([TEXT])
        assert explained.found == [
            replace(translation, score=explained.score, log_probability=explained.log_probability)
        ]
        assert (explained.score, explained.log_probability) == pytest.approx(
            (translation.score, translation.log_probability), abs=1e-4
        )
        assert explained.translation == translation.text
        tree = explained.tree
        (best,) = tree.best()
        tokens = tree.path(best)[: -1 if translation.finished else None]
        assert one.bundle.target_tokenizer.decode(tokens) == translation.text
        assert explained.texts[best] == translation.text


def test_the_compiled_search_is_the_one_compared_with(translator: Translator) -> None:
    engine = translator.engine
    if not isinstance(engine, Engine):
        pytest.skip("nothing is compiled here")
    texts = ["zehn drei", TEXT, "vier vier vier"]
    assert [explain(translator, text).translation for text in texts] == translator.translate(texts)
    with pytest.raises(ConfigurationError, match="precision int8 cannot be explained"):
        explain(translator.searching(precision="int8"), TEXT)


def test_a_model_from_right_to_left_is_refused_before_it_searches(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = BackwardsTokenizer(translator.bundle.target_tokenizer)
    monkeypatch.setattr("multihead.judging.explain.search_batch", lambda *_: pytest.fail("it searched"))
    with pytest.raises(ConfigurationError, match="writes from right to left: explanations need one"):
        explain(Translator(replace(translator.bundle, target_tokenizer=turned)), TEXT)


def test_what_survives_in_the_tree_are_the_n_best(translator: Translator) -> None:
    explained = explain(translator.searching(beam=4), TEXT, n_best=4)
    (wanted,) = translator.n_best([TEXT], 4, beam=4)
    assert [one.text for one in explained.found] == [one.text for one in wanted]
    assert [explained.texts[place] for place in explained.tree.best()] == [one.text for one in wanted]


def test_numbers_are_those_of_score_align_and_attention(translator: Translator, numbers: Any) -> None:
    sources, targets = map(list, zip(*numbers.pairs(8, 50), strict=True))
    found = analyze_pairs(translator, sources, targets, alternatives=3)
    forced = score(translator, sources, targets)
    assert [one.links for one in found] == align(translator, sources, targets)
    for one, own, source, target in zip(found, forced, sources, targets, strict=True):
        assert [piece.text for piece in one.pieces] == own.tokens
        assert [piece.probability for piece in one.pieces] == pytest.approx(
            [math.exp(value) for value in own.log_probabilities], rel=1e-3
        )
        assert one.source_words == source.split()
        assert [word.text for word in one.words] == target.split()
        assert one.weights is not None
        assert all(sum(row) <= 1 + 1e-5 and min(row) >= 0 for row in one.weights)
        for piece in one.pieces:
            better = [other for other in piece.candidates if other.probability > piece.probability]
            assert len(piece.candidates) == 3
            assert [other.text for other in piece.candidates[: len(better)]] == [other.text for other in better]
            assert piece.rank == len(better) + 1 if len(better) < 3 else piece.rank > 3
    explained = explain(translator, sources[0], targets[0])
    assert explained.log_probability == pytest.approx(forced[0].log_probability, abs=1e-4)
    own = translator.attention(sources[0], targets[0])
    for mine, wanted in zip(explained.attention.weights, own.weights, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_a_batch_is_its_pairs_one_by_one(translator: Translator, recurrent: Translator, numbers: Any) -> None:
    pairs = [*numbers.pairs(3, 51), ("", "one"), ("eins", ""), (" ", ""), ("你好 eins", "世界 one")]
    sources, targets = map(list, zip(*pairs, strict=True))
    for model in (translator, recurrent):
        told: list[int] = []
        together = analyze_pairs(model, sources, targets, progress=told.append)
        assert sum(told) == len(pairs)
        for one, source, target in zip(together, sources, targets, strict=True):
            (alone,) = analyze_pairs(model, [source], [target])
            assert [word.text for word in one.words] == [word.text for word in alone.words]
            assert (one.source_words, one.links) == (alone.source_words, alone.links)
            assert flat(one) == pytest.approx(flat(alone), abs=1e-4)
    assert analyze_pairs(translator, [], []) == []


def test_long_sources_change_how_many_states_are_held_and_nothing_else(
    translator: Translator, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = map(list, zip(*numbers.pairs(4, 52), strict=True))
    expected = analyze_pairs(translator, sources, targets)
    monkeypatch.setattr(alternatives, "_CELLS", 1)
    for one, other in zip(analyze_pairs(translator, sources, targets), expected, strict=True):
        assert [[word.text for word in one.words]] == [[word.text for word in other.words]]
        assert flat(one) == pytest.approx(flat(other), abs=1e-4)


def flat(one: PairAnalysis) -> list[float]:
    words = [word.probability for word in one.words]
    others = [other.probability for word in one.words for other in word.alternatives]
    return [
        *words,
        *others,
        *(piece.probability for piece in one.pieces),
        *(w for row in one.weights or [] for w in row),
    ]


@torch.no_grad()
def next_log_probabilities(model: Network, source: list[int], target: list[int]) -> torch.Tensor:
    """log p of the continuation, by a pass over the whole sequence."""
    given = torch.tensor([[2, *target]])
    logits = model(torch.tensor([[*source, 3]]), torch.tensor([len(source) + 1]), given).logits
    return torch.log_softmax(logits[0, -1], dim=0)


def test_other_words_are_the_definition_written_as_loops(translator: Translator, recurrent: Translator) -> None:
    """The best other token at any position of a word or after it, by full passes, continued greedily."""
    tokenizer = translator.bundle.target_tokenizer
    breaks = [*starts_with_space(tokenizer.entries)]
    breaks[tokenizer.eos_id] = True
    is_break = torch.tensor(breaks)
    allowed = set(range(len(tokenizer))) - {*tokenizer.forbidden_in_output}
    for model, source, target, count in ((translator, "eins sieben", "one seven", 4), (recurrent, "neun", "zq", 3)):
        network = model.bundle.model
        read, written = tokenizer.encode(source), tokenizer.encode(target)
        (found,) = analyze_pairs(model, [source], [target], alternatives=count)
        starts = [place for place, token in enumerate(written) if breaks[token]]
        for word, start, stop in zip(found.words, starts, [*starts[1:], len(written)], strict=True):
            departures = []
            for place in range(start, stop + 1):
                row = next_log_probabilities(network, read, written[:place])
                before = sum(
                    float(next_log_probabilities(network, read, written[:at])[written[at]])
                    for at in range(start, place)
                )
                if place == stop:
                    end = float(row[is_break].logsumexp(0))
                    assert word.probability == pytest.approx(math.exp(before + end), rel=1e-3)
                elif tokenizer.decode(written[start:place]).strip():
                    departures.append((before + float(row[is_break].logsumexp(0)), place, None))
                for token in allowed:
                    if (
                        breaks[token] == (place == start)
                        and token != tokenizer.eos_id
                        and [token] != written[place : place + 1]
                    ):
                        departures.append((before + float(row[token]), place, token))
            wanted: dict[str, float] = {}
            for total, place, token in sorted(departures, key=lambda one: -one[0])[:count]:
                own = [*written[start:place], *([] if token is None else [token])]
                for _ in range(16 if token is not None else 0):
                    row = next_log_probabilities(network, read, [*written[:start], *own])
                    chosen = max(allowed, key=lambda index: float(row[index]))
                    if breaks[chosen]:
                        total += float(row[is_break].logsumexp(0))
                        break
                    total, own = total + float(row[chosen]), [*own, chosen]
                else:
                    if token is not None:
                        continue  # the word never ends
                text = tokenizer.decode(own).strip()
                if text and text != word.text:
                    wanted[text] = max(wanted.get(text, 0.0), math.exp(total))
            assert {one.text: one.probability for one in word.alternatives} == pytest.approx(wanted, rel=1e-3)
            values = [one.probability for one in word.alternatives]
            assert values == sorted(values, reverse=True)


def test_words_that_end_with_their_pieces_multiply_to_the_translation(of_pieces: Translator) -> None:
    """No token counts twice, and none is left out."""
    sources, targets = ["a be@@ cat", "do", "be@@ do@@ a"], ["be@@ a cat do", "a@@ a@@ be", "cat"]
    tokenizer = of_pieces.bundle.target_tokenizer
    analyses, forced = analyze_pairs(of_pieces, sources, targets), score(of_pieces, sources, targets)
    for found, own, target in zip(analyses, forced, targets, strict=True):
        assert [word.text for word in found.words] == tokenizer.decode(tokenizer.encode(target)).split()
        for number, word in enumerate(found.words):
            tokens = [piece.probability for piece in found.pieces if piece.word == number]
            assert word.probability == pytest.approx(math.prod(tokens), rel=1e-4)
        product = math.prod(word.probability for word in found.words) * found.pieces[-1].probability
        assert math.log(product) == pytest.approx(own.log_probability, abs=1e-4)


def test_other_words_end_with_their_pieces(of_pieces: Translator) -> None:
    """The definition written as loops: a word ends with a piece that says so, or with the sentence."""
    network, tokenizer = of_pieces.bundle.model, of_pieces.bundle.target_tokenizer
    end, allowed = tokenizer.eos_id, set(range(len(tokenizer))) - {*tokenizer.forbidden_in_output}
    goes_on = [not entry.endswith(b" ") for entry in tokenizer.entries]
    source, target, count = "do be@@ a", "be@@ a cat a@@ do@@", 4
    read, written = tokenizer.encode(source), tokenizer.encode(target)
    rows = [next_log_probabilities(network, read, written[:place]) for place in range(len(written) + 1)]
    own = [float(row[token]) for row, token in zip(rows, written, strict=False)]
    (found,) = analyze_pairs(of_pieces, [source], [target], alternatives=count)
    for word, start, stop in zip(found.words, (0, 2, 3), (2, 3, 5), strict=True):
        unfinished = goes_on[written[stop - 1]]
        departures: list[tuple[float, int, int | None]] = []
        for place in range(start, stop + unfinished):
            before = sum(own[start:place])
            if start < place < stop:
                departures.append((before + float(rows[place][end]), place, None))
            others = allowed - {end, *written[place : place + 1]}
            departures += [(before + float(rows[place][token]), place, token) for token in others]
        whole = sum(own[start:stop]) + (float(rows[stop][end]) if unfinished else 0.0)
        assert word.probability == pytest.approx(math.exp(whole), rel=1e-3)
        wanted: dict[str, float] = {}
        for total, place, token in sorted(departures, key=lambda one: -one[0])[:count]:
            changed = [*written[start:place], *([] if token is None else [token])]
            ends = token is None or not goes_on[token]
            for _ in range(0 if ends else 16):
                row = next_log_probabilities(network, read, [*written[:start], *changed])
                chosen = max(allowed, key=lambda index: float(row[index]))
                total += float(row[chosen])
                changed += [chosen] * (chosen != end)
                ends = chosen == end or not goes_on[chosen]
                if ends:
                    break
            text = tokenizer.decode(changed)
            if ends and text != word.text:
                wanted[text] = max(wanted.get(text, 0.0), math.exp(total))
        assert {one.text: one.probability for one in word.alternatives} == pytest.approx(wanted, rel=1e-3)
        assert all(len(one.text.split()) == 1 for one in word.alternatives)
    assert any(word.alternatives for word in found.words)


def test_a_given_translation_is_explained_beside_the_models_own(translator: Translator) -> None:
    explained = explain(translator, TEXT, "zero ten")
    assert (explained.translation, explained.given) == ("zero ten", True)
    assert [word.text for word in explained.analysis.words] == ["zero", "ten"]
    assert explained.found[0].text == translator.translate([TEXT])[0]
    assert explained.log_probability < explained.found[0].log_probability
    own = explain(translator, TEXT)
    again = explain(translator, TEXT, own.translation)
    assert again.score == pytest.approx(own.score, abs=1e-5)
    assert not own.given


@pytest.mark.parametrize("kind", ["transformer", "recurrent", "blind"])
def test_the_content_is_plain_data_and_whole(translator: Translator, recurrent: Translator, kind: str) -> None:
    blind = Translator(replace(translator.bundle, model=Blind(translator.bundle.model)))
    model = {"transformer": translator, "recurrent": recurrent, "blind": blind}[kind]
    content = explain(model.searching(max_length=9), TEXT).content()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    target, source = [piece["text"] for piece in content["pieces"]], content["source_pieces"]
    shapes = {
        name: None if one is None else [len(one["layers"]), len(one["layers"][0]), one["rows"], one["columns"]]
        for name, one in content["attention"].items()
    }
    given = ["<s>", *target[:-1]]
    assert (
        shapes
        == {
            "transformer": {
                "cross": [1, 2, target, source],
                "encoder": [1, 2, source, source],
                "decoder": [1, 2, target, given],
            },
            "recurrent": {"cross": [1, 1, target, source], "encoder": None, "decoder": None},
            "blind": {"cross": None, "encoder": None, "decoder": None},
        }[kind]
    )
    assert (content["word_attention"] is None) == (kind == "blind")
    assert content["shapes"]["table"].startswith("name")
    nodes = content["search"]["nodes"]
    assert nodes[0]["parent"] is None
    assert all(node["parent"] < place for place, node in enumerate(nodes) if place)
    assert [node["text"] for node in nodes if node["rank"] == 1] == [content["translation"]]


def test_a_folder_will_do_and_a_picture_is_drawn(translator: Translator, trained: Path, tmp_path: Path) -> None:
    explained = explain(trained, TEXT)
    assert explained.content() == explain(translator, TEXT).content()
    explained.picture(tmp_path / "words.png")
    assert (tmp_path / "words.png").read_bytes().startswith(b"\x89PNG")
    explained.picture(tmp_path / "words.svg")
    drawn = re.findall("<!-- (.*?) -->", (tmp_path / "words.svg").read_text(encoding="utf-8"))
    names = [f"{word.text}·{format_percent(word.probability)}" for word in explained.analysis.words]
    sources = explained.analysis.source_words
    assert [html.unescape(text) for text in drawn[: len(sources) + len(names)]] == sources + names
    blind = Translator(replace(translator.bundle, model=Blind(translator.bundle.model)))
    with pytest.raises(InputError, match="nothing to draw"):
        explain(blind, TEXT).picture(tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()


def test_what_cannot_be_explained(translator: Translator) -> None:
    with pytest.raises(InputError, match="an empty sentence has nothing to explain"):
        explain(translator, " ")
    with pytest.raises(ConfigurationError, match="n_best: expected 1 to the beam"):
        explain(translator, TEXT, n_best=99)
    with pytest.raises(ConfigurationError, match="alternatives: expected a number of at least 0"):
        explain(translator, TEXT, alternatives=-1)
    with pytest.raises(InputError, match="got 1 targets for 2 sources"):
        analyze_pairs(translator, ["a", "b"], ["c"])
    assert all(not word.alternatives for word in explain(translator, TEXT, alternatives=0).analysis.words)


def test_the_page_of_documentation_names_every_field(translator: Translator) -> None:
    """The page also names every fate of a hypothesis."""
    content = explain(translator, TEXT).content()
    text = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    first_cells = [
        name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall("`(.*?)`", row)
    ]
    fields = [name.partition(".")[0] for name in first_cells if name not in get_args(Fate)]
    assert list(dict.fromkeys(fields)) == [*content]
    assert [name for name in first_cells if name in get_args(Fate)] == [*get_args(Fate)]
    named = set(re.findall("`(.*?)`", text))
    inside = [content["words"][0], content["pieces"][0], content["found"][0], content["search"]["nodes"][0]]
    assert {key for one in inside for key in one} - named == set()
