"""Lines to lines, window by window, and what is written for each line.

A window has enough lines to sort by length, so that batches are well filled. Memory does not grow, and order is kept.
Each window is translated by itself, so that a translation that resumes at the beginning of a window forms the same
batches, and writes the same bytes, as one that never stopped. Lines that are too long are cut by `translating.lengths`.

A line is written as its translation, or as rows for programs:

    line TAB score TAB text                     with several translations, or scores
    line TAB score TAB suspicion TAB text       with the guard, too (`judging.guard`)

``line`` counts from 1; the rows of one line stand together, best first, or as they were drawn. A text can contain a
TAB, but it stands last, and no text contains a line feed: split a row at its first two TABs, or three. A line without
words has one row, of score 0 and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from multihead.errors import ConfigurationError
from multihead.judging.guard_signs import GuardSettings
from multihead.lines.side_files import LineConstraints, SideFiles
from multihead.translating.lengths import SplitLine, join_parts, split_long_lines
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import ConstraintError, Translation
from multihead.translating.translator import Translator

if TYPE_CHECKING:
    from multihead.judging.guard import GuardedTranslation
    from multihead.text.context import Documents

T = TypeVar("T")

WINDOW = 2000
"""Lines that are translated together."""
PARTS_NAMED = 5
"""Maximum number of suspicious parts of a line that are explained: a line of ten thousand words can have hundreds."""


@dataclass(frozen=True)
class LineOptions:
    """How lines are translated, and what is written for them.

    Args:
        request: how to translate; the texts and constraints of each window are put into it. With ``n_best`` rows are
            written, otherwise lines.
        scores: write the best translation as a row.
        guard: settings of the guard, if there is one.
        max_source: a line of more tokens, including the end symbol, is translated sentence by sentence; 0: never.
        max_sentence: a sentence of such a line with more tokens is halved; 0: ``max_source``.

    Raises:
        ConfigurationError: options that exclude each other.
    """

    request: TranslationRequest
    scores: bool = False
    guard: GuardSettings | None = None
    max_source: int = 0
    max_sentence: int = 0

    def __post_init__(self) -> None:
        if self.guard is not None and self.guard.mode == "retry" and self.request.several:
            raise ConfigurationError(
                "guard retry searches for one translation of a line, not for several: use mark, or ask for one"
            )
        if self.max_source < 0 or self.max_source == 1:
            raise ConfigurationError(f"max_source: expected 0 (no limit) or at least 2, got {self.max_source}")
        if self.max_sentence and not 0 < self.max_source <= self.max_sentence:
            raise ConfigurationError(
                f"max_sentence: expected at least max_source, which is {self.max_source}, got {self.max_sentence}"
            )

    @property
    def record(self) -> dict[str, Any]:
        """What else decides the output, for the record of an unfinished file."""
        return {}

    def rows(self, number: int, text: str, found: Sequence[Translation], suspicions: Sequence[float] = ()) -> list[str]:
        """What is written for line ``number``, without line feeds.

        Args:
            number: of the line, from 1.
            text: of the line.
            found: its translations.
            suspicions: one per translation, if guarded.
        """
        del text
        if self.request.n_best is None and not self.scores and not self.request.several:
            return [found[0].text]
        columns = [f"{suspicion:.2f}\t" for suspicion in suspicions] or [""] * len(found)
        return [
            f"{number}\t{translation.score:.4f}\t{column}{translation.text}"
            for translation, column in zip(found, columns, strict=True)
        ]


@dataclass(frozen=True)
class TextResult:
    """The translations of one text."""

    translations: list[Translation]
    """One or more."""
    guarded: list[GuardedTranslation]
    """The same with their suspicion; empty without a guard."""


def translate_texts(
    translator: Translator,
    request: TranslationRequest,
    guard: GuardSettings | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[TextResult]:
    """A result for each text of a request, in order.

    Args:
        translator: the model; its settings of the search should be those of the request, for the guard.
        request: the texts, and how to translate them.
        guard: settings of the guard, if there is one.
        progress: called with the number of newly finished texts.

    Raises:
        InputError, ConfigurationError: as `Translator.run`.
    """
    found = translator.run(request, progress)
    if guard is None:
        return [TextResult(row, []) for row in found]
    from multihead.judging.guard import assess, retry

    texts = [text for text, row in zip(request.texts, found, strict=True) for _ in row]
    judged = assess(translator, texts, [translation for row in found for translation in row], guard, request.terms)
    if guard.mode == "retry":
        judged = retry(translator, request, judged, guard)
        found = [[each.translation] for each in judged]
    rest = iter(judged)
    return [TextResult(row, [next(rest) for _ in row]) for row in found]


@dataclass(frozen=True)
class Window:
    """Some lines, translated."""

    lines: int
    """Number of input lines."""
    rows: list[str]
    """What to write, without line feeds."""
    remarks: tuple[str, ...]
    """Notes for the reader, each with its line."""


def translated(
    translator: Translator,
    lines: Iterator[str],
    options: LineOptions,
    *,
    done: int = 0,
    files: SideFiles | None = None,
    progress: Callable[[int], None] | None = None,
    before: Iterable[str] = (),
) -> Iterator[Window]:
    """Translate lines as they come.

    Args:
        translator: the model.
        lines: those still to translate.
        options: how to translate, and what to write.
        done: number of lines before them.
        files: constraints of single lines; their files include the lines before.
        progress: called with the number of newly finished lines.
        before: the last of the lines before them, for a model that reads them as context (`Tokenizer.context` many).

    Raises:
        DataError: a side file does not fit the lines; names file and line.
    """
    translator = translator.searching(**options.request.search.model_dump())
    documents = _documents(translator, before)
    reader = None if files is None else files.open(done)
    bundle = translator.bundle
    cut = partial(split_long_lines, bundle.source_tokenizer, language=bundle.source_language)
    for window in in_chunks(lines, WINDOW):
        constraints = LineConstraints() if reader is None else reader.read(window)
        split = cut(window, options.max_source, constraints.any_at, options.max_sentence)
        try:
            results = _translate_window(translator, _parts(window, split, documents), options, constraints, progress)
        except ConstraintError as error:
            assert reader is not None  # only a line with constraints has such an error; it is never cut
            number = done + 1 + [place for place, line in enumerate(split) for _ in line.texts][error.place]
            reader.refuse("prefixes" if error.name == "prefix" else "phrases", f"its {error.reason}", number)
        rows: list[str] = []
        remarks: list[str] = []
        for number, (text, line, parts) in enumerate(zip(window, split, results, strict=True), start=done + 1):
            whole = join_parts(line, [part.translations for part in parts])
            rows += options.rows(number, text, whole, _suspicions(parts, len(whole)))
            remarks += [f"line {number}{remark}" for remark in _remarks(line, whole, parts)]
        yield Window(len(window), rows, tuple(remarks))
        done += len(window)
    if reader is not None:
        reader.end()


def _documents(translator: Translator, before: Iterable[str]) -> Documents | None:
    """What puts context before lines that follow some; None for a model without."""
    sentences = translator.bundle.source_tokenizer.context
    if not sentences:
        return None
    from multihead.text.context import Documents

    documents = Documents(sentences)
    for line in before:
        documents.add(line)
    return documents


def _parts(window: Sequence[str], lines: Sequence[SplitLine], documents: Documents | None) -> list[Sequence[str]]:
    """The texts of each line, as the model reads them."""
    if documents is None:
        return [line.texts for line in lines]
    return [documents.add_parts(text, line.texts) for text, line in zip(window, lines, strict=True)]


def _translate_window(
    translator: Translator,
    lines: Sequence[Sequence[str]],
    options: LineOptions,
    constraints: LineConstraints,
    progress: Callable[[int], None] | None,
) -> list[list[TextResult]]:
    """The results of each line's parts."""
    request = replace(
        options.request,
        texts=[text for line in lines for text in line],
        prefixes=_for_texts(constraints.prefixes, lines),
        phrases=_for_texts(constraints.phrases, lines),
    )
    tell = None if progress is None else _in_lines(progress, len(lines), len(request.texts))
    results = iter(translate_texts(translator, request, options.guard, tell))
    return [[next(results) for _ in line] for line in lines]


def _for_texts(constraints: Sequence[T] | None, lines: Sequence[Sequence[str]]) -> list[T] | None:
    """The constraints of lines, for each of their texts."""
    if constraints is None:
        return None
    return [own for own, line in zip(constraints, lines, strict=True) for _ in line]


def _in_lines(progress: Callable[[int], None], lines: int, texts: int) -> Callable[[int], None]:
    """Progress in lines, from progress in texts: the same share of the whole."""
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        whole = done * lines // texts - before * lines // texts
        if whole:
            progress(whole)

    return tell


def _suspicions(parts: Sequence[TextResult], count: int) -> list[float]:
    """For each of the ``count`` translations of a line the highest suspicion of its parts; empty without a guard."""
    rows = [result.guarded for result in parts if result.guarded]
    return [max(row[min(place, len(row) - 1)].score for row in rows) for place in range(count)] if rows else []


def _remarks(line: SplitLine, whole: Sequence[Translation], parts: Sequence[TextResult]) -> Iterator[str]:
    """Notes on a line, each to follow its number."""
    if line.remark is not None:
        yield f": {line.remark}"
    for place, translation in enumerate(whole, start=1):
        if not translation.finished:
            yield f": {_which(place, len(whole))} reached the length limit and may be cut"
    if whole[0].warning is not None:
        yield f": {whole[0].warning}"
    notes = list(_guard_remarks(parts))
    most = PARTS_NAMED if len(parts) > 1 else len(notes)
    yield from notes[:most]
    if len(notes) > most:
        yield f": {len(notes) - most:,} more of its parts were suspicious"


def _guard_remarks(parts: Sequence[TextResult]) -> Iterator[str]:
    """The guard's notes on each part, or on a line that is whole."""
    for number, result in enumerate(parts, start=1):
        part = f", part {number}" if len(parts) > 1 else ""
        for place, guarded in enumerate(result.guarded, start=1):
            if guarded.remark is not None:
                which = "" if len(result.guarded) == 1 else f"{_which(place, len(result.guarded))} is "
                yield f"{part}: {which}{guarded.remark}"


def _which(place: int, count: int) -> str:
    return "the translation" if count == 1 else f"translation {place}"


def in_chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of up to ``size`` lines."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
