"""Whether the text of a run is still what it was made from, for `multihead doctor`: by the SHA-256 in its description.

Paths are kept as they were given, so from another folder they may lead to other text; and text is edited. What is wrong
with the text that is there now is for `doctor_text`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from multihead.data.corpus import TextScan, scan
from multihead.data.languages import Languages
from multihead.data.readers import scan_corpus
from multihead.errors import DataError
from multihead.workflows.doctor_findings import Finding, found
from multihead.workflows.settings import CorpusRecord, TextFile


def check_recorded(records: Iterable[CorpusRecord], languages: Languages, name: str) -> list[Finding]:
    """One finding, if any file has other text than then.

    Args:
        records: of corpora whose files are there.
        languages: codes of both sides, for files of pairs that need them.
        name: of the run, for people.
    """
    files = [(file, len(record.files) > 1) for record in records for file in record.files]
    changed = [what for file, line_by_line in files if (what := _change(file, line_by_line, languages))]
    if not changed:
        return []
    what = f"{len(changed)} of {len(files)} files are not what it was made from: {'; '.join(changed)}"
    return [found("changed", name, len(changed), len(files), what)]


def _change(file: TextFile, line_by_line: bool, languages: Languages) -> str:
    """What is different; empty if nothing is."""
    try:
        now = _scan(Path(file.path), line_by_line, languages)
    except DataError as error:  # it could be read when the run was made
        return str(error)
    if now.sha256 == file.sha256:
        return ""
    if now.lines != file.lines:
        return f"{file.path} has {now.lines:,} lines and had {file.lines:,}"
    return f"{file.path} has as many lines, but not the same"


def _scan(path: Path, line_by_line: bool, languages: Languages) -> TextScan:
    return scan(path) if line_by_line else scan_corpus(path, None, *languages).files[0]
