"""Recognizes the folders of other programs, and reads them

`FORMATS` lists the readers in the order in which they are asked. Each is imported only when a folder that multihead did
not write is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from multihead.errors import FormatError, MultiheadError
from multihead.files import read_stable
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.unsupported import describe


@dataclass(frozen=True)
class Format:
    """A format that can be read.

    Args:
        name: for messages and ``certificate.json``.
        module: in this package; has ``recognizes(folder) -> bool`` and ``read(folder, languages)``.
    """

    name: str
    module: str

    def recognizes(self, folder: Path) -> bool:
        """Whether the files of the folder are of this format; cheap, and without reading weights."""
        found: bool = self._function("recognizes")(folder)
        return found

    def read(self, folder: Path, languages: Languages) -> TranslatorParts:
        """The parts of the model in the folder; FormatError if something in it is missing, damaged or unsupported."""
        try:
            parts: TranslatorParts = self._function("read")(folder, languages)
        except MultiheadError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # a value of another type than the program writes, in one of its many settings
            reason = (str(error).splitlines() or [""])[0][:160]
            raise FormatError(
                f"{folder}: settings that {self.name} does not write ({type(error).__name__}: {reason}); the folder is "
                "damaged, or of a version that multihead does not know"
            ) from error
        return parts

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(f"multihead.interop.formats.{self.module}"), name)
        return function


FORMATS: tuple[Format, ...] = (
    Format("MarianMT (OPUS-MT)", "marian"),
    Format("M2M-100 and NLLB-200", "m2m100"),
    Format("mBART-50", "mbart"),
    Format("BART and Pegasus", "bart"),
    Format("T5 and MADLAD-400", "t5"),
    Format("Marian", "marian_npz"),
    Format("FSMT (WMT19)", "fsmt"),
    Format("fairseq", "fairseq"),
    Format("OpenNMT-py 3", "opennmt"),
    Format("Eole", "eole"),
    Format("JoeyNMT 2", "joeynmt"),
    Format("torch.nn.Transformer", "pytorch"),
)
"""The formats that can be read."""


def recognize(folder: Path) -> Format | None:
    """The format of a folder; None if no other program is known that writes such a folder."""
    return next((one for one in FORMATS if folder.is_dir() and one.recognizes(folder)), None)


def read_foreign(folder: Path, languages: Languages, form: Format | None = None) -> TranslatorParts:
    """The model in a folder that another program wrote.

    Args:
        folder: the folder.
        languages: source and target, for a model that has several.
        form: its format, if `recognize` has been asked before.

    Raises:
        FormatError: no format recognizes the folder, or its reader refuses it.
    """
    found = form or recognize(folder)
    if found is None:
        raise unsupported(folder)
    return read_stable(folder, lambda: found.read(folder, languages))


def is_foreign(folder: Path) -> bool:
    """Whether a folder that no format recognizes is that of another program."""
    return folder.is_dir() and describe(folder) is not None


def unsupported(folder: Path) -> FormatError:
    """The error for a folder that no format recognizes: what it is, and what can be read."""
    what = describe(folder) or "not a model folder of multihead or of another program that it knows"
    return FormatError(
        f"{folder}: {what}. It reads {', '.join(one.name for one in FORMATS)}: docs/interop.md lists their files"
    )
