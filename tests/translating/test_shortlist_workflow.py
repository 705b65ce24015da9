"""From a run's pairs to a shortlist beside its model, and translations by it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from multihead import Translator
from multihead.cli.shortlist import shortlist as command
from multihead.decoding.shortlist import Shortlisted
from multihead.errors import ConfigurationError, FormatError
from multihead.files import write_tensors
from multihead.text.tokenizer import Tokenizer
from multihead.translating import shortlist as workflow
from multihead.translating.request import Sampling, TranslationRequest
from multihead.translating.shortlist import FILE, shortlist

TEXTS = ["eins zwei drei", "", "sieben acht", "zehn neun acht eins"]

if TYPE_CHECKING:
    from tests.conftest import Numbers


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run whose folder may be written to."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_translations_are_made_of_what_it_names(run: Path) -> None:
    said: list[str] = []
    assert shortlist(run, always=1, candidates=12, say=said.append) == run / "best" / FILE
    assert "target symbols for a sentence" in said[0]
    translator = Translator.load(run)
    short = translator.searching(shortlist=True)
    assert isinstance(short.stepper, Shortlisted)
    assert not isinstance(translator.stepper, Shortlisted)
    found, tokenizer = short.translate(TEXTS), translator.bundle.source_tokenizer
    for text, translation in zip(TEXTS, found, strict=True):
        named = set(short.shortlist.of([*tokenizer.encode(text), tokenizer.eos_id]).tolist())
        assert set(tokenizer.encode(text)) <= named  # both sides share a vocabulary
        assert set(translator.bundle.target_tokenizer.encode(translation)) <= named
        assert len(named) < len(tokenizer) / 2
    assert found == translator.translate(TEXTS)  # the text is simple enough
    assert short.searching(coverage=0.1, beam=3).translate(TEXTS) == translator.searching(beam=3).translate(TEXTS)


def test_a_request_decides_whether_it_is_used(run: Path) -> None:
    """Also where the search is not compiled, and whatever the translator's own settings are."""
    shortlist(run, always=1, candidates=12, say=lambda _: None)
    translator = Translator.load(run).searching(no_repeat=9)
    short = translator.searching(shortlist=True)
    for sampling in (None, Sampling()):
        asked = [TranslationRequest(one.search_settings(), TEXTS, sampling=sampling) for one in (translator, short)]
        found = [one.run(request) for one, request in zip((translator, short), asked, strict=True)]
        assert found[0] != found[1]
        assert [translator.run(request) for request in asked] == [short.run(request) for request in asked] == found


def test_symbols_are_counted_in_parts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (workflow._AT_A_TIME, 7):
        monkeypatch.setattr(workflow, "_AT_A_TIME", size)
        found.append(shortlist(run, always=20, say=lambda _: None).read_bytes())
    assert found[0] == found[1]


def test_it_is_one_of_its_models_subwords(run: Path, tmp_path: Path, numbers: Numbers) -> None:
    best = Path(shutil.copytree(run / "best", tmp_path / "model"))
    with pytest.raises(ConfigurationError, match="has no pairs of text"):
        shortlist(best)
    shortlist(best, data=run, say=lambda _: None)
    assert (best / FILE).is_file()
    assert Translator.load(best).searching(shortlist=True).translate(TEXTS) == Translator.load(run).translate(TEXTS)
    other = Tokenizer.learn(["other words"], 270)
    other.save(run / "data" / "target.tokenizer.json")
    numbers.seal_again(run)
    with pytest.raises(ConfigurationError, match="not the subwords of the model"):
        shortlist(best, data=run)


def test_without_one_or_with_a_damaged_one_it_says_what_to_do(run: Path, numbers: Numbers) -> None:
    short = Translator.load(run).searching(shortlist=True)
    with pytest.raises(ConfigurationError, match="make one by `multihead shortlist`"):
        short.translate(TEXTS)
    path = shortlist(run, say=lambda _: None)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"damaged.* make it again"):
        Translator.load(run).searching(shortlist=True).translate(TEXTS)
    path.write_bytes(whole)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # it is mapped, and written again
    tensors["candidates"][-1] = len(short.bundle.target_tokenizer)
    write_tensors(path, tensors)
    numbers.seal_again(run / "best")
    with pytest.raises(FormatError, match=r"damaged .* make it again"):
        Translator.load(run).searching(shortlist=True).translate(TEXTS)
    digest = bytes.fromhex(short.bundle.source_tokenizer.digest)
    assert digest in whole
    path.write_bytes(whole.replace(digest, bytes(32)))
    numbers.seal_again(run / "best")
    with pytest.raises(ConfigurationError, match="other subwords"):
        Translator.load(run).searching(shortlist=True).translate(TEXTS)


def test_the_command(run: Path) -> None:
    done = CliRunner().invoke(command, [str(run), "--always", "8", "--candidates", "3"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "target symbols" in done.output
    first = (run / "best" / FILE).read_bytes()
    CliRunner().invoke(command, [str(run), "--always", "8", "--candidates", "3"], catch_exceptions=False)
    assert (run / "best" / FILE).read_bytes() == first
    with pytest.raises(ConfigurationError, match="at least 1"):
        CliRunner().invoke(command, [str(run), "--always", "0"], catch_exceptions=False)
