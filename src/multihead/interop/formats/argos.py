"""Argos Translate: the ``.argosmodel`` that it installs.

A zip file with one folder:

    metadata.json          languages and versions
    model/                 the CTranslate2 model (`formats.ctranslate2`)
    sentencepiece.model    our subwords as a SentencePiece model (`formats.sentencepiece`)
    minisbd/               a rule that cuts paragraphs into sentences (`formats.sentence_ends`), so that no network is
                           needed

Argos Translate searches with a beam of 4 and a length penalty of 0.2, and writes spaces for underscores.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from multihead.interop.formats import ctranslate2, sentencepiece
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.sentence_ends import sentence_model
from multihead.text.sentencepiece import SentencePieceTokenizer

QUANTIZATIONS = ctranslate2.QUANTIZATIONS

_PACKED = ("config.json", "model.bin", "shared_vocabulary.json")
"""The files of the model that Argos Translate reads."""


def refusals(parts: TranslatorParts) -> list[str]:
    """What Argos Translate lacks."""
    reasons = ctranslate2.refusals(parts)
    source, target = parts.source_tokenizer, parts.target_tokenizer
    if source.digest != target.digest:
        reasons.append(
            "a tokenizer for each language, but a package has one sentencepiece.model (train with --shared-vocabulary)"
        )
    elif not isinstance(source, SentencePieceTokenizer):
        reasons += [reason for reason in sentencepiece.refusals(parts) if reason not in reasons]
    if source.prefix or target.prefix:
        reasons.append("language tokens, which Argos Translate does not put before a source")
    if not parts.source_language or not parts.target_language:
        reasons.append("no languages, which a package must name: give --source-language and --target-language")
    return reasons


def package_name(parts: TranslatorParts) -> str:
    """The name of the package, as Argos Translate names its own."""
    return f"translate-{parts.source_language}_{parts.target_language}-1_0"


def write(parts: TranslatorParts, folder: Path, quantization: str) -> None:
    """Write the ``.argosmodel`` and a README.md beside it.

    Args:
        parts: a translator without `refusals`.
        folder: an existing folder.
        quantization: of the weights.

    Raises:
        MissingDependencyError: ctranslate2, sentencepiece, protobuf or onnx is not installed.
    """
    tokenizer, name = parts.source_tokenizer, package_name(parts)
    pieces = tokenizer.model if isinstance(tokenizer, SentencePieceTokenizer) else sentencepiece.model_of(tokenizer)
    splitter = sentence_model(str(parts.source_language))
    with TemporaryDirectory(dir=folder) as temporary:
        ctranslate2.write(parts, Path(temporary), quantization)
        with zipfile.ZipFile(folder / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package:
            package.writestr(f"{name}/metadata.json", json.dumps(_metadata(parts), indent=2, ensure_ascii=False) + "\n")
            package.writestr(f"{name}/README.md", f"# {parts.config.summary}\n\nWeights in {quantization}.\n")
            package.writestr(f"{name}/sentencepiece.model", pieces)
            package.writestr(f"{name}/minisbd/{parts.source_language}.onnx", splitter)
            for file in _PACKED:
                package.write(Path(temporary) / file, f"{name}/model/{file}")
    (folder / "README.md").write_text(_readme(parts, name), encoding="utf-8", newline="\n")


def inexact(parts: TranslatorParts) -> str | None:
    """How the package's tokenizer differs from ours; None if it is the same."""
    return None if isinstance(parts.source_tokenizer, SentencePieceTokenizer) else sentencepiece.inexact(parts)


def _metadata(parts: TranslatorParts) -> dict[str, object]:
    source, target = str(parts.source_language), str(parts.target_language)
    return {
        "package_version": "1.0",
        "argos_version": "1.11",
        "from_code": source,
        "from_name": _name(source),
        "to_code": target,
        "to_name": _name(target),
    }


def _name(code: str) -> str:
    """The English name of a language where the package babel knows it, else its code."""
    try:
        from babel import Locale

        return str(Locale.parse("en").languages.get(code, code))
    except ImportError:
        return code


def _readme(parts: TranslatorParts, name: str) -> str:
    source, target = parts.source_language, parts.target_language
    return (
        f"# Argos Translate package, {source} to {target}\n\n{parts.config.summary}.\n\n"
        "```python\nimport argostranslate.package\nimport argostranslate.translate\n\n"
        f'argostranslate.package.install_from_path("{name}.argosmodel")\n'
        f'print(argostranslate.translate.translate("...", "{source}", "{target}"))\n```\n\n'
        "It needs Argos Translate 1.11 or later, and no network: the package has its own rule for the ends "
        "of sentences. LibreTranslate serves it once it is installed.\n"
    )
