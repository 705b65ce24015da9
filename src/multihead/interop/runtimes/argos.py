"""Argos Translate as the other side of a certificate.

Its model is run by CTranslate2, its tokenizer by SentencePiece; these two are compared token by token. Then Argos
Translate itself installs the package into a folder of its own and translates, in a process of its own: its settings are
read from the environment when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from multihead.decoding.search import Search
from multihead.errors import MissingDependencyError, SurroundingsError
from multihead.interop.formats.argos import package_name
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.ctranslate2 import CTranslate2Runtime

_BEAM, _ALPHA, _LONGEST = 4, 0.2, 256

_PROGRAM = r"""
import json, sys
from pathlib import Path
task = json.load(sys.stdin)
from argostranslate import package, sbd, translate
package.install_from_path(Path(task["package"]))
(installed,) = package.get_installed_packages()
splitter = sbd.MiniSBDSentencizer(installed)
translation = translate.get_translation_from_codes(installed.from_code, installed.to_code)
found = [[splitter.split_sentences(text), translation.translate(text)] for text in task["texts"]]
Path(task["answer"]).write_text(json.dumps(found), encoding="utf-8", newline="\n")
"""


class ArgosRuntime(CTranslate2Runtime):
    """An ``.argosmodel``.

    Args:
        folder: where it is.
        parts: the translator in it.

    Raises:
        MissingDependencyError: argostranslate is not installed.
    """

    name = "Argos Translate"

    def __init__(self, folder: Path, parts: TranslatorParts) -> None:
        try:
            found = version("argostranslate")
        except PackageNotFoundError:
            purpose = "running an Argos Translate package"
            raise MissingDependencyError("argostranslate", "argostranslate", purpose) from None
        self._package = folder / f"{package_name(parts)}.argosmodel"
        with TemporaryDirectory() as temporary:
            with zipfile.ZipFile(self._package) as package:
                package.extractall(temporary)
            inside = Path(temporary) / package_name(parts)
            super().__init__(inside / "model", parts, pieces=inside / "sentencepiece.model")
        self.version = f"{found} with CTranslate2 {self.version}"

    def rules(self, search: Search) -> Rules:
        """Those of CTranslate2."""
        rules = super().rules(search)
        return replace(
            rules,
            differences=(
                f"Argos Translate always searches with a beam of {_BEAM} and a length penalty of {_ALPHA}",
                "Argos Translate cuts a paragraph into sentences, and writes spaces for underscores",
                *rules.differences,
            ),
        )

    @property
    def text_rules(self) -> Rules:
        """The rules by which Argos Translate searches."""
        return super().rules(Search(beam=_BEAM, alpha=_ALPHA, max_length=_LONGEST, min_length=1))

    def translate_texts(self, texts: Sequence[str]) -> list[tuple[list[str], str]]:
        """The sentences that Argos Translate finds in each text, and its translation.

        Raises:
            SurroundingsError: Argos Translate fails.
        """
        with TemporaryDirectory() as temporary:
            answer = Path(temporary) / "answer.json"
            task = {"package": str(self._package.resolve()), "texts": list(texts), "answer": str(answer)}
            places = {f"XDG_{name}_HOME": temporary for name in ("DATA", "CONFIG", "CACHE")}
            settings = {
                "ARGOS_PACKAGES_DIR": str(Path(temporary) / "packages"),
                "ARGOS_DEVICE_TYPE": "cpu",
                "ARGOS_COMPUTE_TYPE": "float32",
                "ARGOS_BEAM_SIZE": str(_BEAM),
                "ARGOS_CHUNK_TYPE": "DEFAULT",
            }
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", _PROGRAM],
                input=json.dumps(task).encode(),
                capture_output=True,
                env={**os.environ, **places, **settings},
                check=False,
            )
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                raise SurroundingsError(f"Argos Translate failed on the exported package: {' '.join(last)}")
            found = json.loads(answer.read_text(encoding="utf-8"))
        return [(list(sentences), str(text)) for sentences, text in found]

    @staticmethod
    def finished_text(text: str) -> str:
        """What Argos Translate makes of a detokenized translation."""
        return text.replace("▁", " ").replace("_", " ").removeprefix(" ")


def open_folder(folder: Path, parts: TranslatorParts, _quantization: str) -> ArgosRuntime:
    """The runtime of an exported folder.

    Raises:
        MissingDependencyError: argostranslate is not installed.
    """
    return ArgosRuntime(folder, parts)
