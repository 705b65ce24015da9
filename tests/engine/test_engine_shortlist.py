"""The compiled search with a shortlist equals that of a model without other symbols, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.search import Search, Symbols
from multihead.decoding.shortlist import Shortlist, Shortlisted
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine, EngineCache
from multihead.engine.weights import PRECISIONS
from multihead.errors import ConfigurationError
from multihead.models.transformer import Transformer


def some(vocab: int, always: int = 20, each: int = 4, seed: int = 1) -> Shortlist:
    """Drawn: symbols for all, the special ones among them, and some for each source symbol, unsorted and repeated."""
    draw = np.random.default_rng(seed)
    common = [0, 2, 3, *draw.choice(np.arange(4, vocab), always, replace=False).tolist()]
    return Shortlist(common, np.arange(vocab + 1) * each, draw.integers(4, vocab, vocab * each))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kept", [12, 64, 70])
def test_it_is_the_search_of_a_model_with_those_symbols_alone(drawn: Any, precision: Any, kept: int) -> None:
    whole = drawn.model("odd widths, no biases")
    ids = torch.tensor([0, 1, 2, 3, *sorted(np.random.default_rng(kept).choice(range(4, 90), kept, False).tolist())])
    small = Transformer(whole.config.model_copy(update={"target_vocab": len(ids)})).eval()
    state = whole.state_dict()
    for name in ("target_embedding.table.weight", "output.weight"):
        state[name] = state[name][ids]
    small.load_state_dict(state)
    shortlist = Shortlist(ids.tolist(), [0] * 91, [])
    asked: dict[str, Any] = {"max_lengths": 9, "beam": 3, "n_best": 3, "min_lengths": 2}
    found = Engine(whole, precision, shortlist).search(drawn.sentences(), *drawn.split(drawn.symbols, **asked))
    expected = Engine(small, precision).search(drawn.sentences(), *drawn.split(drawn.symbols, **asked))
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [tuple(ids[list(h.tokens)].tolist()) for h in other]
        assert [(h.score, h.finished) for h in one] == [(h.score, h.finished) for h in other]


def test_with_all_symbols_it_is_the_whole_search(drawn: Any) -> None:
    model, asked = drawn.model(), {"max_lengths": 12, "beam": 4, "n_best": 4}
    everything = Shortlist(range(drawn.vocab), [0] * (drawn.vocab + 1), [])
    found = Engine(model, "int8", everything).search(drawn.sentences(), *drawn.split(drawn.symbols, **asked))
    assert found == Engine(model, "int8").search(drawn.sentences(), *drawn.split(drawn.symbols, **asked))


@pytest.mark.parametrize("beam", [1, 4])
def test_it_finds_what_masking_in_pytorch_finds(drawn: Any, beam: int) -> None:
    model, sources, shortlist = drawn.model("pre-norm"), drawn.sentences(), some(drawn.vocab)
    masked = Shortlisted(model, shortlist, drawn.vocab)
    asked: dict[str, Any] = {"max_lengths": 11, "beam": beam, "n_best": beam}
    expected = beam_search(masked, *drawn.padded(sources), *drawn.split(drawn.symbols, **asked))
    found = Engine(model, shortlist=shortlist).search(sources, *drawn.split(drawn.symbols, **asked))
    same = [drawn.alike(one, other) for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 1  # a near tie
    for source, hypotheses in zip(sources, found, strict=True):
        assert all(set(one.tokens) <= set(shortlist.of(source).tolist()) for one in hypotheses)


def test_greedily_it_finds_what_is_found_with_all_others_forbidden(drawn: Any) -> None:
    model, shortlist, changed = drawn.model(), some(drawn.vocab), 0
    engine, whole = Engine(model, shortlist=shortlist), Engine(model)
    for source in drawn.sentences():
        others = set(range(drawn.vocab)) - set(shortlist.of(source).tolist()) | set(drawn.symbols.forbidden)
        symbols = Symbols(drawn.symbols.begin, drawn.symbols.end, tuple(sorted(others)))
        ((one,),) = engine.search([source], SearchTask(drawn.symbols, max_lengths=12), Search(beam=1))
        ((other,),) = whole.search([source], SearchTask(symbols, max_lengths=12), Search(beam=1))
        ((free,),) = whole.search([source], SearchTask(drawn.symbols, max_lengths=12), Search(beam=1))
        assert one.tokens == other.tokens
        assert one.score >= other.score  # of a probability within fewer
        changed += one.tokens != free.tokens
    assert changed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_its_company_changes_no_bit_of_a_sentence(drawn: Any, precision: Any) -> None:
    """Although every sentence has its own symbols."""
    engine = Engine(drawn.model("pre-norm"), precision, some(drawn.vocab))
    sources, asked = drawn.sentences(24), {"max_lengths": 14, "beam": 3, "n_best": 3}
    together = engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=1)
    assert engine.search(sources, *drawn.split(drawn.symbols, **asked), workers=3) == together
    assert engine.search(sources[::-1], *drawn.split(drawn.symbols, **asked), workers=1) == together[::-1]
    assert [engine.search([one], *drawn.split(drawn.symbols, **asked), workers=2)[0] for one in sources] == together


def test_one_that_does_not_fit_is_refused(drawn: Any) -> None:
    model = drawn.model()
    for wrong in (some(drawn.vocab - 1), some(drawn.vocab + 1)):
        with pytest.raises(ConfigurationError, match="make one for this model"):
            Engine(model, shortlist=wrong)
    endless = Engine(model, shortlist=Shortlist([5, 6], [0] * (drawn.vocab + 1), []))
    with pytest.raises(ConfigurationError, match="must contain the end symbol"):
        endless.search(drawn.sentences(1), SearchTask(drawn.symbols, max_lengths=5))


def test_each_is_made_once(drawn: Any) -> None:
    engines, model, shortlist = EngineCache(), drawn.model(), some(drawn.vocab)
    plain, short = engines.get(model, "int8"), engines.get(model, "int8", shortlist)
    assert plain is not short
    assert engines.get(model, "int8", shortlist) is short
    assert engines.get(model, "int8") is plain
    assert engines.get(model, "int8", some(drawn.vocab)) is short  # read once more
    assert engines.get(model, "int8", some(drawn.vocab, seed=2)) is not short
