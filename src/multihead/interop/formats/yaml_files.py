"""Reads YAML files whose size, depth and aliases are bounded.

A parser of YAML takes time that grows with the square of the depth, and an alias repeats what it stands for, so that
twenty lines of aliases of aliases hold a billion values. Settings of other programs need neither: events are read one
by one, and a file is refused at the first one that goes too deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multihead.errors import FormatError, require_package, shortened
from multihead.model_folder import COPY_AGAIN

_DEEPEST = 50
_MOST_ALIASES = 20
"""Aliases of a file: twenty repeat a file 400 times at most."""
_MOST_SETTINGS = 1 << 20
"""Characters of a file of settings."""


def parse_texts(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a YAML text, whose scalars all stay text: a piece may be ``no`` or ``1``.

    Raises:
        FormatError: it is no YAML, no mapping, or too deep.
        MissingDependencyError: ``yaml`` is not installed.
    """
    parser = _Parser(path)
    return parser.mapping(lambda: _compose(parser.events(text)))


def parse_settings_file(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a YAML text, in which only plain data is allowed.

    Raises:
        FormatError: it is no YAML, no mapping, too long or too deep.
        MissingDependencyError: ``yaml`` is not installed.
    """
    parser = _Parser(path)
    if len(text) > _MOST_SETTINGS:
        raise FormatError(f"{path}: has {len(text):,} characters, and settings of {_MOST_SETTINGS:,} at most are read")

    def load() -> Any:
        for _ in parser.events(text):
            pass
        return parser.yaml.safe_load(text)

    return parser.mapping(load)


class _Parser:
    """Parses a text; errors name its file."""

    def __init__(self, path: Path) -> None:
        require_package("yaml", "interop", f"reading {path}")
        import yaml

        self.yaml, self._path = yaml, path

    def events(self, text: str) -> Iterator[Any]:
        """The events of a text.

        Raises:
            FormatError: it is too deep, or has too many aliases.
        """
        yaml, depth, aliases = self.yaml, 0, 0
        for event in yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST or aliases > _MOST_ALIASES:
                what = f"more than {_DEEPEST} levels" if depth > _DEEPEST else f"more than {_MOST_ALIASES} aliases"
                raise FormatError(f"{self._path}: YAML with {what}, which multihead does not read; {COPY_AGAIN}")
            yield event

    def mapping(self, load: Any) -> dict[str, Any]:
        """What ``load`` returns, which must be a mapping."""
        try:
            content = load()
        except (self.yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
            reason = shortened(" ".join(str(error).split()), 160)
            raise FormatError(f"{self._path}: damaged: not YAML with plain data ({reason}); {COPY_AGAIN}") from None
        if not isinstance(content, dict):
            raise FormatError(f"{self._path}: damaged: expected a mapping, got {type(content).__name__}; {COPY_AGAIN}")
        return content


def _compose(events: Iterator[Any]) -> Any:
    """The value of the first document of a stream of events; scalars are text."""
    import yaml

    anchors: dict[str, Any] = {}

    def value(event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError(f"an alias {event.anchor!r} of nothing")
            return anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            found: Any = event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            found = [value(inner) for inner in until(yaml.SequenceEndEvent)]
        elif isinstance(event, yaml.MappingStartEvent):
            found = {value(key): value(next(events)) for key in until(yaml.MappingEndEvent)}
        else:
            raise ValueError("an empty document")
        if event.anchor is not None:
            anchors[event.anchor] = found
        return found

    def until(end: type[Any]) -> Iterator[Any]:
        for event in events:
            if isinstance(event, end):
                return
            yield event

    for event in events:
        if not isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent)):
            return value(event)
    return None
