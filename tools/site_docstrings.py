"""Docstrings for the site: converts the docstrings that Python's help shows to Markdown.

An extension of griffe (mkdocs.yml). Equations (``.. math::``), code blocks (``::``) and roles such as ``:func:`name` ``
become Markdown; a name becomes a link to its place in the reference if it has one.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object

MATH = re.compile(r"^( *)\.\. math::\n((?:\1 +\S.*\n?|[ \t]*\n)+)", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`(~?)([\w.]+)`")
CODE = re.compile(r"::$(?=\n[ \t]*\n( +)\S)", re.MULTILINE)


def to_markdown(text: str) -> str:
    """A docstring converted to Markdown."""
    text = MATH.sub(_equation, text)
    text = ROLE.sub(_reference, text)
    return CODE.sub(":", text)


def _equation(found: re.Match[str]) -> str:
    indent, body = found[1], textwrap.dedent(found[2]).strip()
    if "&" in body or "\\\\" in body:
        body = f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
    return textwrap.indent(f"\n$$\n{body}\n$$\n\n", indent, lambda line: bool(line.strip()))


def _reference(found: re.Match[str]) -> str:
    short, name = found.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'


class Docstrings(Extension):
    """Rewrites every docstring that griffe collects."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
