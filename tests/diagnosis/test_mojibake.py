"""Text whose UTF-8 was read as Windows-1252 is told from correct text in many languages."""

from __future__ import annotations

import pytest

from multihead.data.toy.numbers import generate
from multihead.diagnosis.mojibake import find_mojibake, mojibake_lines

LINES = [
    "Für die Mädchen gibt’s „Käse“ – 5 € das Stück…",
    "Il n’a pas été « là » où l’œuvre naît : ça coûte 10 °C…",
    "El niño comió ¿qué? ¡Mañana!",
    "Não há maçãs à mão",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň",
    "Съешь же ещё этих мягких булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "我能吞下玻璃而不伤身体",
    "私はガラスを食べられます",
    "나는 유리를 먹을 수 있어요",
    "So funny 😀",
    "don’t",
]


def misread(text: str) -> str:
    """As Windows-1252 reads UTF-8; the five bytes that it lacks stay as they are, as in browsers."""
    return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in text.encode())


@pytest.mark.parametrize("line", LINES)
def test_misread_lines_are_found_and_correct_ones_are_not(line: str) -> None:
    assert find_mojibake(line) is None
    found = find_mojibake(misread(line))
    assert found is not None
    wrong, meant = found
    assert misread(meant) == wrong
    assert meant in line
    latin = find_mojibake(line.encode().decode("latin-1"))  # the C1 controls instead
    assert latin is not None
    assert latin[1] == meant


@pytest.mark.parametrize(
    "line",
    [
        "« été\u00a0»",
        "voilà\u00a0«\u00a0",
        "MAÇÃ” e MANHÃ»",
        "„Ä“ und „Ö“ und „Ü“",
        "Ð and Ñ",
        "Â",
        "plain",
        "",
        "Ã\n¼",
    ],
)
def test_correct_lines_with_such_characters_are_left_alone(line: str) -> None:
    assert find_mojibake(line) is None


@pytest.mark.parametrize("language", ["de", "zh"])
def test_a_corpus(language: str) -> None:
    pairs = generate(language, "en", 300, seed=1)
    texts = [pair.source for pair in pairs]
    assert mojibake_lines(texts) == {}
    beyond = [place for place, text in enumerate(texts) if not text.isascii()]
    mixed = [misread(text) if place % 2 else text for place, text in enumerate(texts)]
    wrong = {place for place in beyond if place % 2}
    assert wrong.issuperset(found := mojibake_lines(mixed))
    assert len(found) > 0.7 * len(wrong)  # a single "ł" or 克 in a line proves nothing
