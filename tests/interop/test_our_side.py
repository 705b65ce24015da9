"""Our side of a certificate: hypotheses that the length limit cuts."""

import pytest

from multihead.decoding.search import Search
from multihead.interop.comparing import compare_searches
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.transformers import TransformersRuntime


def test_a_cut_translation_is_explained_only_if_it_scores_higher_by_our_model(foreign, opus_mt):
    parts = read_foreign(opus_mt[1], Languages())
    ours, line = OurSide(parts), foreign.sentences(1, seed=3)[0]
    source = ours.ended(ours.encode([line])[0])
    rules = Rules(Search(beam=4, max_length=40), parts.target_tokenizer.forbidden_in_output, unfinished_compete=True)
    (good,) = ours.translate([source], rules)
    end = parts.target_tokenizer.eos_id
    assert good[-1] == end
    again = (good[:-1] * 40)[:40]  # goes in circles
    bad = [*reversed(good[:-1]), *[good[0]] * 10, end]
    assert ours.ranks_cut_higher(source, bad, again, rules) is (mean(ours, source, again) > mean(ours, source, bad))
    assert not ours.ranks_cut_higher(source, good, [good[0]] * 40, rules)
    likely = [*good[:-1], good[-2]]
    short = Rules(Search(beam=4, max_length=len(likely)), rules.forbidden, unfinished_compete=True)
    assert ours.ranks_cut_higher(source, bad, likely, short)
    assert not ours.ranks_cut_higher(source, bad, likely, rules)  # the limit did not cut it
    assert not ours.ranks_cut_higher(source, bad, [*likely[:-1], end], short)  # it has an end
    assert not ours.ranks_cut_higher(source, bad, likely, Rules(short.search, short.forbidden))
    check = compare_searches(ours, short, [bad], [likely], [source], [line], 0.0)
    assert check.unexplained == 0
    assert "the length limit cuts their translation" in check.differences[0].explanation


def mean(ours, source, row):
    """The score of a translation with a length penalty of 1."""
    ended = row if row[-1] == 0 else [*row, 0]
    return sum(ours.score([source], [ended])[0][: len(row)]) / len(row)


@pytest.mark.proof
def test_cut_hypotheses_that_rank_higher_are_no_errors(foreign, tmp_path):
    # A model that has learned little repeats itself; repetitions are as probable as endings.
    foreign.marian(tmp_path, updates=60)
    parts = read_foreign(tmp_path, Languages())
    ours, theirs = OurSide(parts), TransformersRuntime(tmp_path, parts, with_tokenizers=False)
    lines = list(dict.fromkeys(foreign.sentences(400, seed=9)))[:128]
    sources = [ours.ended(ids) for ids in ours.encode(lines)]
    search = Search(beam=4, max_length=40)
    rules = theirs.rules(search)
    mine, other = ours.translate(sources, rules), theirs.translate(sources, search)
    check = compare_searches(ours, rules, mine, other, sources, lines, 1e-5)
    assert check.unexplained == 0
    end = parts.target_tokenizer.eos_id
    cut = [place for place, row in enumerate(other) if list(row) != list(mine[place]) and end not in row]
    assert cut
    assert all(ours.ranks_cut_higher(sources[place], mine[place], other[place], rules) for place in cut)
