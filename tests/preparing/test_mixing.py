"""Sampling by temperature: shares are those of the equation, exactly, and epochs see pairs by them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.configuration import MOST_FACTOR
from multihead.data.order import Share, epoch_pairs
from multihead.errors import ConfigurationError
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing.corpora import scan_files
from multihead.preparing.mixing import tempered
from multihead.preparing.prepare import write_data
from multihead.training.context import RunContext

corpora = st.lists(
    st.tuples(st.integers(1, 10**8), st.floats(0.01, 50), st.sampled_from("abc")), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(corpora, st.floats(1, 1000))
def test_the_share_of_a_group_is_that_of_the_equation(rows: list[tuple[int, float, str]], temperature: float) -> None:
    sizes, weights, groups = (list(column) for column in zip(*rows, strict=True))
    found = tempered(sizes, weights, groups, temperature)
    total = math.fsum(n * w for n, w in zip(sizes, found, strict=True))
    before = {g: math.fsum(n * w for n, w, own in rows if own == g) for g in groups}
    after = {
        g: math.fsum(n * w for n, w, own in zip(sizes, found, groups, strict=True) if own == g) / total for g in groups
    }
    powers = {g: n ** (1 / temperature) for g, n in before.items()}
    for group, power in powers.items():
        assert after[group] == pytest.approx(power / math.fsum(powers.values()), rel=1e-9)
    # Within a group nothing changes, an epoch has as many pairs, and every weight can be recorded.
    for group in set(groups):
        ratios = [new / old for new, old, own in zip(found, weights, groups, strict=True) if own == group]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-9)
    assert max(found) <= MOST_FACTOR
    if max(found) < MOST_FACTOR * (1 - 1e-9):
        assert total == pytest.approx(math.fsum(before.values()), rel=1e-9)


@settings(max_examples=30)
@given(corpora)
def test_a_temperature_of_1_changes_nothing(rows: list[tuple[int, float, str]]) -> None:
    sizes, weights, groups = (list(column) for column in zip(*rows, strict=True))
    assert tempered(sizes, weights, groups, 1.0) == weights


def test_many_files_take_time_for_each_once() -> None:
    compared = 0

    class Group(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int.__eq__(self, other) is True

        __hash__ = int.__hash__

    found = tempered([10, 30] * 200, [1.0] * 400, [Group(number % 2) for number in range(400)], 2.0)
    assert len(set(found)) == 2
    assert compared <= 4 * 400


@settings(max_examples=200)
@given(st.integers(10**6, 10**8), st.integers(1, 1000), st.floats(4, 100))
@example(10140891, 782, 5.0)
def test_no_weight_is_rounded_above_the_limit(large: int, small: int, temperature: float) -> None:
    assert max(tempered([large, small], [1.0, 1.0], [0, 1], temperature)) <= MOST_FACTOR


def test_a_corpus_without_pairs_has_no_share() -> None:
    assert tempered([0, 10, 10], [3.0, 1.0, 1.0], "abc", 5.0) == [3.0, 1.0, 1.0]
    assert tempered([0], [3.0], "a", 5.0) == [3.0]


def test_epochs_see_the_shares_exactly() -> None:
    """4,000, 500 and 20 pairs at T = 5: after E epochs each corpus was seen E n w times, up to one pair."""
    sizes, temperature = [4000, 500, 20], 5.0
    weights = tempered(sizes, [1.0] * 3, "abc", temperature)
    ends = np.cumsum(sizes)
    shares = [Share(int(e - n), int(e), w) for e, n, w in zip(ends, sizes, weights, strict=True)]
    seen = np.zeros(3)
    for epoch in range(7):
        pairs = epoch_pairs(int(ends[-1]), shares, seed=3, epoch=epoch)
        seen += np.histogram(pairs, [0, *ends])[0]
    powers = np.array(sizes) ** (1 / temperature)
    assert np.abs(seen - 7 * sum(sizes) * powers / powers.sum()).max() <= 1
    again = epoch_pairs(int(ends[-1]), shares, seed=3, epoch=6)
    assert again.tolist() == pairs.tolist()


# --------------------------------------------------------------------------- from settings to the store


def write(folder: Path, name: str, count: int) -> Path:
    path = folder / name
    path.write_text("".join(f"eins zwei {n}\tone two {n}\n" for n in range(count)), encoding="utf-8")
    return path


def stored(folder: Path, **wishes):
    folder.mkdir()
    asked = PrepareSettings(vocab_size=300, held_out=4, **wishes)
    return write_data(Choices(asked), scan_files(asked), folder, RunContext(say=lambda _: None)).config


def test_shards_of_a_corpus_count_together(tmp_path: Path) -> None:
    write(tmp_path, "large-1.tsv", 300), write(tmp_path, "large-2.tsv", 100), write(tmp_path, "small.tsv", 100)
    rows = [{"source": tmp_path / "large-*.tsv"}, {"source": tmp_path / "small.tsv"}]
    plain = stored(tmp_path / "plain", corpus=rows)
    assert [(Path(c.files[0].path).name, c.weight) for c in plain.corpora] == [
        ("large-1.tsv", 1.0),
        ("large-2.tsv", 1.0),
        ("small.tsv", 1.0),
    ]
    found = stored(tmp_path / "found", corpus=rows, temperature=2.0)
    first, second, third = found.corpora
    assert first.weight == second.weight
    ratio = (first.pairs + second.pairs) * first.weight / (third.pairs * third.weight)
    assert ratio == pytest.approx(math.sqrt((first.pairs + second.pairs) / third.pairs))
    seen = sum(corpus.pairs * corpus.weight for corpus in found.corpora)
    assert seen == pytest.approx(found.pairs)


@pytest.mark.parametrize("over", [None, "corpora", "directions"])
def test_directions_are_sampled_where_there_are_several(tmp_path: Path, over: str | None) -> None:
    for name, count in (("a", 300), ("b", 100), ("c", 100)):
        write(tmp_path, f"{name}.tsv", count)
    rows = [
        {"source": tmp_path / f"{name}.tsv", "source_language": language, "target_language": "en"}
        for name, language in (("a", "de"), ("b", "de"), ("c", "fr"))
    ]
    wishes = {} if over is None else {"temperature_over": over}
    first, second, third = stored(tmp_path / "found", corpus=rows, temperature=2.0, **wishes).corpora
    sizes = [corpus.pairs for corpus in (first, second, third)]
    shares = [corpus.pairs * corpus.weight for corpus in (first, second, third)]
    if over == "corpora":
        assert shares[0] / shares[2] == pytest.approx(math.sqrt(sizes[0] / sizes[2]))
    else:
        assert first.weight == second.weight
        assert sum(shares[:2]) / shares[2] == pytest.approx(math.sqrt(sum(sizes[:2]) / sizes[2]))


def test_shards_columns_and_languages_of_a_corpus(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    rows = "".join(f"{n},eins {n},one {n},un {n}\n" for n in range(40))
    path.write_text("id,a,b,de\n" + rows, encoding="utf-8")
    other = write(tmp_path, "x.tsv", 40)
    table = {"source": path, "columns": ["a", "b"], "source_language": "de", "target_language": "en"}
    found = stored(tmp_path / "found", corpus=[table, f"'{other}' weight=2 source-language=de target-language=en"])
    assert [(c.source_language, c.target_language, c.columns, c.weight) for c in found.corpora] == [
        ("de", "en", ("a", "b"), 1.0),
        ("de", "en", None, 2.0),
    ]
    assert (found.source_language, found.target_language) == ("de", "en")
    plain = stored(tmp_path / "plain", source=other)
    assert not {"columns", "source_language"} & plain.corpora[0].model_dump().keys()


def test_what_does_not_fit_together() -> None:
    with pytest.raises(ValueError, match="temperature_over is given without temperature"):
        PrepareSettings(source="a", target="b", temperature_over="corpora")
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        PrepareSettings(source="a", target="b", temperature=0.5)
    with pytest.raises(ValueError, match="weight is given twice"):
        PrepareSettings(corpus=["a b weight=1 weight=2"])
    with pytest.raises(ConfigurationError, match="columns are of a file of pairs"):
        scan_files(PrepareSettings(corpus=["a.de a.en columns=x,y"]))
