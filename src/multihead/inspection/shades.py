"""Shade the words of a document by attention, as terminal text or HTML.

A document is a tree of `WeightedText`s, down to words; the weights of the parts of each node sum to 1. A word is as
dark as

    sqrt(p_sentence) p_word / the largest such value in the document

with p_sentence the product of all weights above it (Yang et al. 2016, figure 5: words that matter, in sentences that
matter), and the mark of a sentence as dark as p_sentence. No character of a document has a meaning to a terminal or a
browser: invisible characters are written as escapes, and HTML's special characters as entities.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multihead.text.vocabulary import visible

_RAMP = (230, 229, 222, 215, 208, 202)
"""Background colors of a terminal with 256 colors, from nearly white to orange."""
_MIN_SHARE = 0.1
"""Without colors, words with at least this share of their sentence are followed by it."""


@dataclass(frozen=True)
class WeightedText:
    """A document or a part of it."""

    weight: float
    """Share of the parent; 1 for a document."""
    text: str = ""
    """Text of a word with the white space before it; empty for anything with parts."""
    parts: tuple[WeightedText, ...] = ()


@dataclass(frozen=True)
class ShadedDocument:
    """A document with its classification."""

    answer: str
    """The classification in one line."""
    document: WeightedText


@dataclass(frozen=True)
class _Sentence:
    """A node whose parts are words."""

    path: tuple[int, ...]
    """Position at each level, counted from 1."""
    share: float
    """Share of the document."""
    words: tuple[WeightedText, ...]

    def strength(self, word: WeightedText) -> float:
        """How dark a word is, before scaling."""
        return float(self.share**0.5 * word.weight)


def _sentences(node: WeightedText, path: tuple[int, ...] = (), share: float = 1.0) -> Iterator[_Sentence]:
    """The nodes whose parts are words."""
    if node.parts and not node.parts[0].parts:
        yield _Sentence(path, share, node.parts)
        return
    for place, part in enumerate(node.parts, start=1):
        yield from _sentences(part, (*path, place), share * part.weight)


def _darkest(sentences: Sequence[_Sentence]) -> float:
    return max((sentence.strength(word) for sentence in sentences for word in sentence.words), default=0.0) or 1.0


def shaded_text(explained: ShadedDocument, *, color: bool) -> str:
    """Terminal text: the classification, then each sentence with its position, share and words.

    Args:
        explained: the document.
        color: shade words by color; otherwise words with a tenth of their sentence are followed by their percentage.
    """
    sentences = list(_sentences(explained.document))
    darkest = _darkest(sentences)
    places = [".".join(map(str, sentence.path)) for sentence in sentences]
    margin = max(map(len, places), default=0)
    lines = [visible(explained.answer)]
    for place, sentence in zip(places, sentences, strict=True):
        mark = f"{place:>{margin}} {sentence.share:4.0%}"
        if color:
            words = "".join(_shade(word.text, sentence.strength(word) / darkest) for word in sentence.words)
            lines.append(f"{_shade(mark, sentence.share)} {words.lstrip()}")
        else:
            words = "".join(_annotate(word) for word in sentence.words)
            lines.append(f"{mark} {words.lstrip()}")
    return "\n".join(lines)


def _shade(text: str, strength: float) -> str:
    """Add a background color to a text, but not to the white space before it."""
    shown = visible(text)
    level = round(strength * len(_RAMP))
    body = shown.lstrip()
    if not level or not body:
        return shown
    return f"{shown[: len(shown) - len(body)]}\x1b[38;5;16;48;5;{_RAMP[min(level, len(_RAMP)) - 1]}m{body}\x1b[0m"


def _annotate(word: WeightedText) -> str:
    shown = visible(word.text)
    return f"{shown}({100 * word.weight:.0f})" if word.weight >= _MIN_SHARE and shown.strip() else shown


_PAGE = """<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.7 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; color: #111; background: #fff; }}
h2 {{ font-size: 1em; margin: 2em 0 .5em; }}
p {{ margin: .2em 0; padding-inline-start: .7em; border-inline-start: .5em solid #eee; }}
p.first {{ margin-top: 1em; }}
span {{ border-radius: .2em; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def shaded_page(documents: Sequence[ShadedDocument], title: str = "Attention") -> str:
    """A self-contained HTML page without scripts: one paragraph per sentence, shares shown on hover.

    Args:
        documents: the documents, in order.
        title: title of the page.
    """
    return _PAGE.format(title=_escaped(title), body="\n".join(map(_section, documents)))


def _section(explained: ShadedDocument) -> str:
    sentences = list(_sentences(explained.document))
    darkest = _darkest(sentences)
    rows = [f"<h2>{_escaped(explained.answer)}</h2>"]
    for sentence in sentences:
        first = ' class="first"' if len(sentence.path) > 1 and sentence.path[-1] == 1 else ""
        place = ".".join(map(str, sentence.path))
        title = f"{place}: {sentence.share:.1%}".removeprefix(": ")
        words = "".join(_word(word, sentence.strength(word) / darkest) for word in sentence.words)
        border = f"border-color: rgba(200, 40, 40, {sentence.share:.3f})"
        rows.append(f'<p{first} dir="auto" style="{border}" title="{title}">{words.strip()}</p>')
    return "\n".join(rows)


def _word(word: WeightedText, strength: float) -> str:
    shown = visible(word.text)
    body = shown.lstrip()
    space = shown[: len(shown) - len(body)]
    style = f"background: rgba(255, 140, 0, {strength:.3f})"
    return f'{space}<span style="{style}" title="{word.weight:.1%}">{_escaped(body)}</span>' if body else space


def _escaped(text: str) -> str:
    return html.escape(visible(text), quote=True)
