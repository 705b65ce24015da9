"""A document with its attention weights as shades: for a terminal, and as a page of HTML that needs nothing else.

A document is a tree of `WeightedText`s, down to words. The weights of the parts of each node add up to one. A word is
as dark as

    sqrt(p_sentence) p_word / the largest of these in the document

with p_sentence the product of all weights above it (Yang et al. 2016, figure 5: words that matter, in sentences that
do), and a sentence's mark as dark as its own share. Who weighs what is for others to say. No character of a document
has a meaning to a terminal or a browser: what is invisible is written as an escape, and HTML's own signs as entities.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multihead.text.tokenizer import visible

_RAMP = (230, 229, 222, 215, 208, 202)
"""Backgrounds of a terminal of 256 colours, from nearly white to orange."""
_NAMED = 0.1
"""Without colours, words with this share of their sentence are told with it."""


@dataclass(frozen=True)
class WeightedText:
    """A document or a part of one."""

    weight: float
    """Its share of what it is a part of; 1 of a document."""
    text: str = ""
    """Of a word, with the white space before it; the text of anything else is that of its parts."""
    parts: tuple[WeightedText, ...] = ()


@dataclass(frozen=True)
class ShadedDocument:
    """A document and what was made of it."""

    answer: str
    """In a line."""
    document: WeightedText


@dataclass(frozen=True)
class _Sentence:
    """Words that stand together."""

    path: tuple[int, ...]
    """Its place at each level, counted from 1."""
    share: float
    words: tuple[WeightedText, ...]

    def strength(self, word: WeightedText) -> float:
        """How dark a word is, before it is compared with others."""
        return float(self.share**0.5 * word.weight)


def _sentences(shade: WeightedText, path: tuple[int, ...] = (), share: float = 1.0) -> Iterator[_Sentence]:
    """Whatever has words for its parts."""
    if shade.parts and not shade.parts[0].parts:
        yield _Sentence(path, share, shade.parts)
        return
    for place, part in enumerate(shade.parts, start=1):
        yield from _sentences(part, (*path, place), share * part.weight)


def _darkest(sentences: Sequence[_Sentence]) -> float:
    return max((sentence.strength(word) for sentence in sentences for word in sentence.words), default=0.0) or 1.0


def shaded_text(explained: ShadedDocument, *, colour: bool) -> str:
    """For a terminal: the answer, then a line a sentence with its place, its share and its words.

    Args:
        explained: the document.
        colour: words are shaded; otherwise those with a tenth of their sentence are followed by their percentage.
    """
    sentences = list(_sentences(explained.document))
    darkest = _darkest(sentences)
    places = [".".join(map(str, sentence.path)) for sentence in sentences]
    margin = max(map(len, places), default=0)
    lines = [_shown(explained.answer)]
    for place, sentence in zip(places, sentences, strict=True):
        mark = f"{place:>{margin}} {sentence.share:4.0%}"
        if colour:
            words = "".join(_painted(word.text, sentence.strength(word) / darkest) for word in sentence.words)
            lines.append(f"{_painted(mark, sentence.share)} {words.lstrip()}")
        else:
            words = "".join(_annotated(word) for word in sentence.words)
            lines.append(f"{mark} {words.lstrip()}")
    return "\n".join(lines)


def _painted(text: str, strength: float) -> str:
    """The text on its shade; the white space in front of it stays as it is."""
    shown = _shown(text)
    level = round(strength * len(_RAMP))
    body = shown.lstrip()
    if not level or not body:
        return shown
    return f"{shown[: len(shown) - len(body)]}\x1b[38;5;16;48;5;{_RAMP[min(level, len(_RAMP)) - 1]}m{body}\x1b[0m"


def _annotated(word: WeightedText) -> str:
    shown = _shown(word.text)
    return f"{shown}({100 * word.weight:.0f})" if word.weight >= _NAMED and shown.strip() else shown


def _shown(text: str) -> str:
    return visible(text)


_PAGE = """<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.7 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; color: #111; background: #fff; }}
h2 {{ font-size: 1em; margin: 2em 0 .5em; }}
p {{ margin: .2em 0; padding-left: .7em; border-left: .5em solid #eee; }}
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
    """A page of HTML: a paragraph a sentence, shares where the pointer rests; no script, and nothing is fetched.

    Args:
        documents: in their order.
        title: of the page.
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
        rows.append(f'<p{first} style="{border}" title="{title}">{words.strip()}</p>')
    return "\n".join(rows)


def _word(word: WeightedText, strength: float) -> str:
    shown = _shown(word.text)
    body = shown.lstrip()
    space = shown[: len(shown) - len(body)]
    style = f"background: rgba(255, 140, 0, {strength:.3f})"
    return f'{space}<span style="{style}" title="{word.weight:.1%}">{_escaped(body)}</span>' if body else space


def _escaped(text: str) -> str:
    return html.escape(_shown(text), quote=True)
