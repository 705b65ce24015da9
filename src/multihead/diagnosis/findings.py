"""Findings of `multihead doctor`: severity, place, count, and remedy.

    error      training or its result would be wrong
    warning    the result would be worse, or its scores too good to be true
    note       worth knowing, often intended

`FINDING_KINDS` has the remedy of each kind, and the shares of a corpus from which it is a warning or an error. No
torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from multihead.data.corpus import Languages, language_of
from multihead.data.entries import Columns
from multihead.platforms import join_words

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""From the most to the least severe."""

EXIT_STATUS: dict[Severity | None, int] = {None: 0, "note": 0, "warning": 3, "error": 4}
"""Exit status of the command by its worst finding. As for every command, 1 and 2 mean that it failed."""


class FindingKind(NamedTuple):
    """What all findings with one code have in common."""

    remedy: str
    warning: float = 0.0
    """Share from which it is a warning; below it is a note."""
    error: float = math.inf
    """Share from which it is an error."""


FINDING_KINDS: dict[str, FindingKind] = {
    "unequal-lines": FindingKind("align the files: line n of one must translate line n of the other", error=0),
    "misaligned": FindingKind(
        "compare both files around the first line named: a line is missing or extra there", error=0
    ),
    "unrelated": FindingKind(
        "were the lines of one file shuffled or sorted, or is it another text? Pair the files again", error=0
    ),
    "changed": FindingKind(
        "the findings describe the files as they are now; to check the text of the training, restore it, or run the "
        "command in the folder where the training was started"
    ),
    "not-utf8": FindingKind(
        "correct the lines, or convert the file: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW", error=0.01
    ),
    "nul": FindingKind("binary data or UTF-16? If UTF-16: iconv -f UTF-16 -t UTF-8 OLD > NEW", error=0.5),
    "mojibake": FindingKind(
        "UTF-8 was read as Windows-1252: get the original, or undo it by text.encode('cp1252').decode()", 0.001, 0.1
    ),
    "unreadable": FindingKind("repair the file; the message says where it cannot be read", error=0),
    "empty": FindingKind(
        "these pairs are left out; write the missing side, or take the line from both files", 0.01, 0.5
    ),
    "empty-both": FindingKind("these pairs are left out; nothing is lost, take the line from both files", math.inf),
    "not-a-pair": FindingKind("these records are left out; the detail says what to correct", 0, 0.5),
    "equal-sides": FindingKind("remove the pairs that are not translated: a model learns to copy from them", 0.01, 0.5),
    "swapped-pairs": FindingKind("exchange the two sides of these lines", 0, 0.2),
    "swapped-files": FindingKind("exchange the two files (source for target)", error=0),
    "wrong-language": FindingKind("name the right files, or correct the language code"),
    "length-ratio": FindingKind(
        "look at the lines: a side is cut off, or holds another sentence; remove them", 0.001, 0.2
    ),
    "duplicates": FindingKind("keep one of each, unless they are meant to weigh more", 0.1),
    "many-targets": FindingKind("expected where context decides; else keep the best translation of each", 0.2),
    "leaked-pairs": FindingKind("remove these pairs from the training text: scores on them measure memory", 0, 0.01),
    "leaked-variants": FindingKind(
        "remove these pairs from the training text: they differ in case, space or punctuation alone", 0, 0.01
    ),
    "leaked-sources": FindingKind("as a rule remove these sources from the training text, too", 0.01),
    "byte-characters": FindingKind(
        "set coverage to 1, learn a larger vocabulary, or normalize these characters", 0.001
    ),
    "many-tokens": FindingKind("learn subwords from text of this language, or more of them (vocab_size)"),
    "round-trip": FindingKind("a tokenizer must restore the text that it was given: do not use this one", error=0),
    "initial-loss": FindingKind(
        "the scale of the first weights is wrong for this size: try the preset's initialization"
    ),
    "learned-nothing": FindingKind(
        "its loss is no better than guessing: check that text and tokenizers are those of its training"
    ),
    "does-not-learn": FindingKind(
        "a sound model learns a few sentences by heart: look for a part that has no gradient", error=0
    ),
    "no-gradient": FindingKind("these parts learn nothing: they are not used, or cut off from the loss", error=0),
    "learns-slowly": FindingKind(
        "as deep networks with post-norm do: take a longer warm-up and a lower rate, or norm = pre", warning=math.inf
    ),
    "sees-the-future": FindingKind("the decoder's mask is wrong: no position may see those behind it", error=0),
    "sees-padding": FindingKind("padding is not masked: a sentence depends on its neighbors in the batch", error=0),
    "loss-differs": FindingKind(
        "training computes another function than translating: compare hidden() with loss()", error=0
    ),
    "not-finite": FindingKind("the model gives no finite numbers: weights or settings are damaged", error=0),
}
"""The kinds of findings by code."""


_SHOWN_LINES = 10
"""Lines that a headline names."""


@dataclass(frozen=True)
class Finding:
    """A single fault and where it occurs."""

    severity: Severity
    code: str
    where: str
    """The files, the folder or the model concerned."""
    count: int
    """How often it occurs."""
    total: int
    """Out of how many items checked."""
    what: str
    """What is wrong, in one sentence."""
    remedy: str
    lines: tuple[int, ...] = ()
    """The lines concerned, counted from 1, of very many the first; empty if it is not about lines."""

    @property
    def headline(self) -> str:
        """One line: severity, code, what is wrong, and the first lines."""
        lines = ""
        if self.lines:
            shown = self.lines[:_SHOWN_LINES]
            more = ", ..." if self.count > len(shown) else ""
            lines = f" (line{'' if len(shown) == 1 else 's'} {', '.join(map(str, shown))}{more})"
        return f"{self.severity:<8}{self.code}: {self.what}{lines}"

    def __str__(self) -> str:
        return f"{self.headline}\n        {self.where}\n        {self.remedy}"


def make_finding(
    code: str, where: object, count: int, total: int, what: str, lines: Sequence[int] = (), remedy: str | None = None
) -> Finding:
    """A finding with the severity that its share, ``count / total``, gives it."""
    kind, share = FINDING_KINDS[code], count / max(total, 1)
    severity: Severity = "error" if share >= kind.error else "warning" if share >= kind.warning else "note"
    return Finding(severity, code, str(where), count, total, what, remedy or kind.remedy, tuple(lines))


_CLEANED = frozenset(
    {"not-utf8", "nul", "empty", "empty-both", "not-a-pair"}
    | {"equal-sides", "swapped-pairs", "length-ratio", "duplicates"}
)
"""What `multihead clean` removes, besides leaks."""
_BEFORE_CLEANING = frozenset(
    ["unequal-lines", "misaligned", "unrelated", "unreadable", "swapped-files", "wrong-language"]
)
"""What has to be repaired first, because it is not about single pairs."""


class FilePair(NamedTuple):
    """Source and target files, or one file of pairs, and how it is read."""

    source: Path
    target: Path | None = None
    languages: Languages = (None, None)
    """Of this pair of files; None: those of all text."""
    columns: Columns | None = None

    @property
    def files(self) -> list[Path]:
        """The one or two files."""
        return [self.source] if self.target is None else [self.source, self.target]


def clean_commands(
    findings: Sequence[Finding], corpora: Sequence[FilePair], held_out: Sequence[FilePair], languages: Languages
) -> list[str]:
    """The commands that remove the faulty pairs of each corpus.

    Args:
        findings: those of all corpora.
        corpora: the training text.
        held_out: validation and test files; they are named if a pair of them leaks.
        languages: codes of both sides, where they were given.
    """
    kinds = {one.code for one in findings if one.remedy == FINDING_KINDS[one.code].remedy}
    leaks = any(code.startswith("leaked-") for code in kinds)
    commands = []
    for files in corpora:
        names = {" + ".join(map(str, files.files)), *map(str, files.files)}
        codes = {one.code for one in findings if one.where in names}
        if (codes & _CLEANED or leaks) and not (codes & _BEFORE_CLEANING or files.columns):
            commands.append(_clean_command(files, held_out if leaks else (), languages))
    return commands


def _clean_command(files: FilePair, held_out: Sequence[FilePair], languages: Languages) -> str:
    words = ["multihead", "clean"]
    for side, (flag, path) in enumerate(zip(("source", "target"), files[:2], strict=True)):
        if path is not None:
            words += [f"--{flag}", str(path)]
        code = files.languages[side] or languages[side]
        if code and code != language_of(path or files[0]):
            words += [f"--{flag}-language", code]
    for pair in held_out:
        words += ["--held-out", join_words(map(str, pair.files))]
    for flag, path in zip(("output", "output-target"), files[:2], strict=True):
        if path is not None:
            words += [f"--{flag}", str(_cleaned(path, pairs=files[1] is None))]
    return join_words(words)


def _cleaned(path: Path, *, pairs: bool) -> Path:
    """``train.clean.de`` for ``train.de.gz``; a file of pairs that is neither TSV nor JSON lines becomes TSV."""
    while path.suffix.lower() in (".gz", ".xz", ".zst"):
        path = path.with_suffix("")
    kept = not pairs or path.suffix.lower() in (".tsv", ".jsonl", ".ndjson")
    return path.with_name(f"{path.stem}.clean{path.suffix if kept else '.tsv'}")


@dataclass
class Diagnosis:
    """The result of `doctor`."""

    findings: list[Finding] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    """What was checked, a sentence each."""
    figures: dict[str, float] = field(default_factory=dict)
    """Measurements, by name."""
    commands: list[str] = field(default_factory=list)
    """Commands that remove the faulty pairs that were found."""

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None without findings."""
        return min((one.severity for one in self.findings), key=SEVERITIES.index, default=None)

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return EXIT_STATUS[self.worst]

    @property
    def ordered(self) -> list[Finding]:
        """The findings, most severe first."""
        return sorted(self.findings, key=lambda one: SEVERITIES.index(one.severity))

    def of(self, code: str) -> list[Finding]:
        """The findings with this code."""
        return [one for one in self.findings if one.code == code]

    def counted(self) -> str:
        """The number of findings of each severity, in words."""
        counts = [(sum(one.severity == severity for one in self.findings), severity) for severity in SEVERITIES]
        return ", ".join(f"{n} {name}{'s' * (n != 1)}" for n, name in counts if n) or "nothing to mend"

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data; findings most severe first, figures that are not finite None."""
        return {
            "worst": self.worst,
            "status": self.status,
            "findings": [asdict(one) for one in self.ordered],
            "looked": self.looked,
            "figures": {name: value if math.isfinite(value) else None for name, value in self.figures.items()},
            "commands": self.commands,
        }

    def __str__(self) -> str:
        rows = [f"looked at {line}" for line in self.looked]
        rows += map(str, self.ordered)
        rows += [f"to remove the faulty pairs: {command}" for command in self.commands]
        return "\n".join([*rows, self.counted()])
