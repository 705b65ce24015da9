"""Import of a translator that another program wrote, with a certificate.

`bundle.load_bundle` reads the folder; here the other program runs it, too, both are compared, and the model is saved as
a folder of ours. Every command also takes the other program's folder itself: an import is for the certificate, and for
models that are read often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from multihead.bundle import Bundle, load_bundle, save_bundle
from multihead.errors import ConfigurationError, SurroundingsError
from multihead.files import atomic_folder, check_new_folder
from multihead.interop.certificate import Certificate, Terms, certify, not_run
from multihead.interop.exporting import CertificateError, add_certificate, parts_of
from multihead.interop.formats.opening import recognize
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.hub import model_folder_of
from multihead.interop.lines import certificate_lines
from multihead.interop.runtimes import TokenizerRuntime, positions_of
from multihead.sealed import seal
from multihead.text.languages import Languages

_OF_TRANSFORMERS = ("marian", "m2m100", "mbart", "bart", "t5", "fsmt")
"""Modules of `interop.formats` whose folders ``transformers`` runs."""


@dataclass(frozen=True)
class ImportOptions:
    """How to import.

    Args:
        languages: source and target of a model that has several.
        lines: file with source lines for the certificate.
        references: file with their reference translations, for the BLEU of both sides.
        count: number of lines.
        beam: of the certificate's beam search.
        certificate: whether to compare at all.
    """

    languages: Languages = field(default_factory=Languages)
    lines: Path | None = None
    references: Path | None = None
    count: int = 200
    beam: int = 5
    certificate: bool = True


def import_model(
    model: str | Path, output: str | Path, options: ImportOptions | None = None, say: Callable[[str], None] = print
) -> Certificate:
    """Save another program's model as a model folder, and compare both.

    Args:
        model: its folder, or its name on the hub of Hugging Face.
        output: a new or empty folder.
        options: languages, and on what to compare.
        say: called with lines about the progress.

    Raises:
        ConfigurationError: the output exists; a language that the model does not have. Nothing is written.
        FormatError: the folder is damaged, or of a kind that is not supported.
        CertificateError: both sides differ. Nothing is left.
        SurroundingsError: a name that cannot be downloaded; the output cannot be written.
    """
    output, options = Path(output), options or ImportOptions()
    check_new_folder(output)
    folder = model_folder_of(model)
    form = recognize(folder)
    bundle = load_bundle(folder, languages=options.languages)
    if form is None:
        raise ConfigurationError(f"{folder}: a model of multihead already; there is nothing to import")
    certificate = _certify(form.module, form.name, folder, bundle, options, say)
    if certificate.state == "failed":
        raise CertificateError(f"{output}: not written: {certificate.reason}")
    with atomic_folder(output) as draft:
        made_by = f"The {form.name} model {model}, imported by multihead {version('multihead')}."
        save_bundle(draft, bundle, {}, made_by)
        add_certificate(draft, certificate)
        seal(draft)
    say(f"{output}: {certificate.summary()}")
    return certificate


def _certify(
    module: str, name: str, folder: Path, bundle: Bundle, options: ImportOptions, say: Callable[[str], None]
) -> Certificate:
    """The certificate of a folder."""
    if not options.certificate:
        return not_run(name, "float32", "not requested")
    parts = parts_of(bundle, f"{folder}: cannot be compared")
    try:
        runtime = _open(module, folder, parts)
    except SurroundingsError as error:
        return not_run(name, "float32", str(error))
    if runtime is None:
        return not_run(name, "float32", f"multihead has no runtime for {name}")
    lines = certificate_lines(
        None,
        parts.source_tokenizer,
        options.lines,
        options.count,
        references=options.references,
        longest=positions_of(runtime),
    )
    return certify(parts, runtime, Terms(name, lines, options.beam), say)


def _open(module: str, folder: Path, parts: TranslatorParts) -> TokenizerRuntime | None:
    """The program that runs the folder; None if no runtime does."""
    if module not in _OF_TRANSFORMERS:
        return None
    from multihead.interop.runtimes.transformers import TransformersRuntime

    languages = {"src_lang": parts.source_language, "tgt_lang": parts.target_language}
    named = {name: code for name, code in languages.items() if code} if module in ("m2m100", "mbart") else {}
    return TransformersRuntime(folder, parts, tokenizer_options=named)
