"""Translating documents: their passages, and tags in the translations.

The texts of all passages are translated together; those with tags are aligned as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from multihead.serving.file_formats import Document, Passage
from multihead.serving.html_placing import escape
from multihead.serving.html_text import Segment, parse
from multihead.serving.schema import TranslatedText

Ask = Callable[[Sequence[str], bool], Awaitable[list[TranslatedText]]]
"""Translates texts, with alignments where the second argument asks for them."""


def html_document(text: str) -> Document:
    """A text in HTML; one without any markup is translated like a plain one, with its line breaks."""
    if "<" not in text and "&" not in text:
        return Document([Passage(Segment(text, [], "", ""))], escape)
    return Document([Passage(part) if isinstance(part, Segment) else part for part in parse(text)], escape)


async def translate_documents(documents: Sequence[Document], ask: Ask) -> list[str]:
    """The translation of each document."""
    passages = [part for document in documents for part in document.parts if isinstance(part, Passage)]
    found: dict[int, TranslatedText] = {}
    for tagged in (False, True):
        places = [place for place, passage in enumerate(passages) if bool(passage.segment.elements) == tagged]
        if places:
            translations = await ask([passages[place].segment.text for place in places], tagged)
            found |= dict(zip(places, translations, strict=True))
    return await asyncio.to_thread(_render_all, documents, [found[place] for place in range(len(passages))])


def _render_all(documents: Sequence[Document], translations: Sequence[TranslatedText]) -> list[str]:
    """The documents with the translations of all their passages."""
    ordered = iter(translations)

    def render(part: str | Passage, document: Document) -> str:
        if isinstance(part, str):
            return part
        translation = next(ordered)
        return part.render(translation.text, translation.alignment, document.quote)

    return ["".join([render(part, document) for part in document.parts]) for document in documents]
