"""YAML files: ordinary ones are read as the library reads them; deep, long and repetitive ones are refused at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from multihead.errors import FormatError
from multihead.interop.formats.yaml_files import parse_settings_file, parse_texts

FILE = Path("file.yml")
PLAIN = [
    "a: 1\nno: yes\n'1': [x, {y: 'z'}, ~]\n",
    "{a: &one [1, 2], b: *one}",
    '"▁[": 5\n"{": 6\n"\\u2581": 7\n',
    "a: |\n  two\n  lines\nb: >\n  folded\n",
    "? complex\n: value\n",
    json.dumps({"nested": {"deeper": [[[[1]]]]}, "text": "é"}),
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_files_are_read_as_the_library_reads_them(text: str) -> None:
    assert parse_texts(text, FILE) == yaml.load(text, Loader=yaml.BaseLoader)
    assert parse_settings_file(text, FILE) == yaml.safe_load(text)


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 30))
BAD = [
    ("[" * 200_000, "more than 50 levels"),
    ("{a: " * 200_000, "more than 50 levels"),
    ("\n".join(" " * i + "a:" for i in range(300)), "more than 50 levels"),
    (BOMB, "more than 20 aliases"),
    (MERGES, "more than 20 aliases"),
    ("a: *b\n", "alias"),
    ("a: [1\n", "not YAML"),
    ("a: b: c\n", "not YAML"),
    ("[1, 2]", "expected a mapping, got list"),
    ("text", "expected a mapping, got str"),
    ("", "expected a mapping, got NoneType|empty"),
    ("{[1]: 2}", "not YAML|expected"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
@pytest.mark.parametrize("parse", [parse_texts, parse_settings_file])
def test_others_are_refused_at_once(parse: Any, text: str, why: str) -> None:
    started = time.process_time()
    with pytest.raises(FormatError, match=rf"^file\.yml: .*({why})") as refused:
        parse(text, FILE)
    assert "\n" not in str(refused.value)
    assert time.process_time() - started < 1


def test_settings_are_short(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="at most are read"):
        parse_settings_file("a: " + "x" * (1 << 20), FILE)
    assert len(parse_texts("".join(f"p{i}: {i}\n" for i in range(5000)), FILE)) == 5000
