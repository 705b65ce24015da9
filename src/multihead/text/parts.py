"""A text and its parts: paragraphs, and the sentences that they are made of.

    paragraph TAB paragraph ...        a document is a line; a tab ends a paragraph (without one there is one paragraph)
    sentence. Sentence! Sentence?      a paragraph, cut where sentences end; or at a separator that is told

Sentences end behind ``. ! ? …`` and what closes after it, where white space follows and no small letter after that;
and behind ``。！？`` anywhere. That is a rule of thumb ("Mr. Smith" is cut): documents whose sentences are known should
have a separator. Labels, files and their lines are the business of `data.labelled`, tensors of `data.nested`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PARAGRAPH = "\t"
"""What stands between the paragraphs of a document."""

_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’“»«)\]]*+(?=\s)|(?<![。！？])[。！？]++[”’」』）]*+""")
"""From the first mark of a run on, never a shorter one: a line of nothing but full stops takes no square of time."""
_SOMETHING = re.compile(r"\S")


def paragraphs_of(text: str, separator: str | None = None) -> list[list[str]]:
    """The sentences of each paragraph, without white space around them; what is empty is no sentence.

    Args:
        text: the document.
        separator: stands between sentences; without one they are cut where they end.
    """
    found = []
    for paragraph in text.split(PARAGRAPH):
        cut = sentences_of(paragraph) if separator is None else paragraph.split(separator)
        found.append([sentence.strip() for sentence in cut if sentence.strip()])
    return [sentences for sentences in found if sentences]


def sentences_of(paragraph: str) -> Iterator[str]:
    """A paragraph, each piece up to the end of a sentence; together they are the paragraph."""
    start = 0
    for end in _END.finditer(paragraph):
        following = _SOMETHING.search(paragraph, end.end())
        if following is not None and not following[0].islower():
            yield paragraph[start : end.end()]
            start = end.end()
    yield paragraph[start:]
