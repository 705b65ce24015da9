"""examples/pretraining_helps.py: labels from the other language, documents, and a complete run."""

import gzip
import random
from pathlib import Path
from types import ModuleType

import pytest

VERBS = {"sitting": "sitzt", "standing": "steht", "playing": "spielt", "riding": "fährt"}
VERBS |= {"running": "rennt", "walking": "geht", "jumping": "springt", "climbing": "klettert"}


def pairs(count: int) -> list[tuple[str, str]]:
    """Captions in German and English: each verb in turn, and as many captions without a verb."""
    draw = random.Random(1)
    people = [("Ein Mann", "A man"), ("Eine Frau", "A woman"), ("Ein Kind", "A child")]
    places = [("im Park", "in the park"), ("am Strand", "on the beach"), ("vor dem Haus", "before the house")]
    found = []
    for number in range(count):
        (who, whom), (where, there) = draw.choice(people), draw.choice(places)
        verb, german = list(VERBS.items())[number % len(VERBS)]
        found += [(f"{who} {german} {where}.", f"{whom} is {verb} {there}."), (f"{who} {where}.", f"{whom} {there}.")]
    return found


@pytest.fixture
def multi30k(tmp_path: Path) -> Path:
    for part, count in (("train", 80), ("val", 16), ("test_2016_flickr", 16)):
        for side, code in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs(count))
            (tmp_path / f"{part}.{code}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_a_label_is_what_the_other_side_says_and_only_that(example: ModuleType) -> None:
    captions = [("eins", "A man is Sitting."), ("zwei", "He is sitting and playing."), ("drei", "A dog on the beach.")]
    assert example.select_labeled(captions, "activity") == [("sitting", "eins")]
    assert example.select_labeled(captions, "topic") == [("water", "drei")]
    rows = example.select_labeled(pairs(40), "activity")
    assert all(VERBS[label] in text for label, text in rows)
    few = example.sample(rows, 16, 1)
    assert {label: sum(own == label for own, _ in few) for label in VERBS} == dict.fromkeys(VERBS, 2)
    assert example.sample(rows, 16, 1) == few


def test_a_document_has_one_caption_with_its_label(example: ModuleType) -> None:
    rows = example.documents(pairs(40), "activity", 1)
    assert len(rows) == 40
    for label, text in rows:
        sentences = text.split(" || ")
        assert len(sentences) == 5
        assert sum(verb in sentence for sentence in sentences for verb in VERBS.values()) == 1
        assert VERBS[label] in text
    places = {[any(v in s for v in VERBS.values()) for s in text.split(" || ")].index(True) for _, text in rows}
    assert len(places) == 5


def test_it_runs_and_goes_on(
    example: ModuleType, multi30k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(multi30k), "--task", "activity", "--output", str(tmp_path / "made")]
    example.main([*words, "--documents"])
    assert len((tmp_path / "made" / "documents-test.tsv").read_text(encoding="utf-8").splitlines()) == 32
    tables = []
    for _ in range(2):  # the second run finds all results
        example.main([*words, "--labelled", "40", "--seeds", "1", "--quick"])
        tables.append(capsys.readouterr().out.splitlines()[-4:])
    assert tables[0][0] == "40 labeled captions, 32 for evaluation, 1 seeds"
    assert [line.split()[0] for line in tables[0][1:]] == ["fresh", "drawn", "pre-trained"]
    assert tables[0] == tables[1]
