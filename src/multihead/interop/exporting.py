"""Export of a translator to the format of another program.

The format is written to a draft beside the destination, compared with our model by the other program's own runtime, and
then moved into place. If the format cannot carry something of the model, nothing is written; if the certificate fails,
nothing is left. Each format is a module of `interop.formats`, each runtime one of `interop.runtimes`; `find_format` is
the only place that knows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from multihead.bundle import Bundle, load_bundle
from multihead.configuration import build
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, MultiheadError, SurroundingsError
from multihead.files import atomic_folder, check_new_folder, write_errors
from multihead.interop import card
from multihead.interop.certificate import FILE, Certificate, Terms, certify, join_certificates, not_run, search_of
from multihead.interop.comparing import measure_rounding
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.tokenizer_json import as_library_tokenizer
from multihead.interop.lines import certificate_lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import DirectedRuntime, Runtime, TokenizerRuntime, positions_of
from multihead.models.config import TransformerConfig
from multihead.text.languages import Languages, find_directions
from multihead.uses_file import NEAR, small_model

FormatName = Literal["ctranslate2", "argos", "transformers", "onnx", "sentencepiece", "web"]

FORMATS: tuple[FormatName, ...] = get_args(FormatName)


class CertificateError(MultiheadError):
    """Both sides do not compute the same."""


def _itself(parts: TranslatorParts, _quantization: str) -> TranslatorParts:
    return parts


@dataclass(frozen=True)
class Format:
    """What an export needs of a format."""

    write: Callable[[TranslatorParts, Path, str], None]
    """Write (parts, empty folder, quantization)."""
    refusals: Callable[[TranslatorParts], list[str]]
    """What the format cannot carry of these parts, in words; empty if it carries all."""
    open: Callable[[Path, TranslatorParts, str], TokenizerRuntime]
    """The runtime of (folder, parts, quantization); MissingDependencyError where it is not installed."""
    quantizations: tuple[str, ...] = ("float32",)
    """The types of weights that the format has, the default first."""
    represented: Callable[[TranslatorParts, str], TranslatorParts] = _itself
    """The parts with the weights that a file of this quantization has."""
    allowed: Callable[[str], float] = lambda _: 1e-3
    """The largest difference of a forced log-probability, for a quantization."""
    arithmetic: str = "float32"
    """The precision in which the runtime computes for the certificate."""
    inexact_tokenizer: Callable[[TranslatorParts], str | None] = lambda _: None
    """How the format's tokenizer differs from ours, if it cannot be the same."""
    open_as_used: Callable[[Path, TranslatorParts], tuple[Runtime, str]] | None = None
    """The runtime as users have it by default, and the precision in which it computes."""
    chooses_direction: bool = False
    """Whether it carries all directions of a model, and its runtime is a `DirectedRuntime`."""
    has_search: bool = True
    """Whether what is written says how to search."""


def find_format(name: str) -> Format:
    """The format of this name.

    Raises:
        ConfigurationError: there is none.
    """
    match name:
        case "ctranslate2":
            from multihead.interop.formats import ctranslate2
            from multihead.interop.runtimes import ctranslate2 as runtime

            return Format(
                ctranslate2.write,
                ctranslate2.refusals,
                runtime.open_folder,
                ctranslate2.QUANTIZATIONS,
                ctranslate2.represented,
                ctranslate2.allowed,
                open_as_used=runtime.open_as_used,
            )
        case "argos":
            from multihead.interop.formats import argos
            from multihead.interop.formats import ctranslate2 as model
            from multihead.interop.runtimes import argos as program

            return Format(
                argos.write,
                argos.refusals,
                program.open_folder,
                argos.QUANTIZATIONS,
                model.represented,
                model.allowed,
                inexact_tokenizer=argos.inexact,
                has_search=False,
            )
        case "transformers":
            from multihead.interop.formats import transformers
            from multihead.interop.runtimes import transformers as library

            return Format(
                transformers.write,
                transformers.refusals,
                library.open_folder,
                transformers.QUANTIZATIONS,
                transformers.represented,
            )
        case "onnx":
            from multihead.interop.formats import onnx
            from multihead.interop.runtimes import onnxruntime

            return Format(
                onnx.write,
                onnx.refusals,
                onnxruntime.open_folder,
                onnx.QUANTIZATIONS,
                onnx.represented,
                open_as_used=onnxruntime.open_as_used,
            )
        case "sentencepiece":
            from multihead.interop.formats import sentencepiece
            from multihead.interop.runtimes import sentencepiece as pieces

            return Format(
                sentencepiece.write,
                sentencepiece.refusals,
                pieces.open_folder,
                inexact_tokenizer=sentencepiece.inexact,
                has_search=False,
            )
        case "web":
            from multihead.interop.formats import web
            from multihead.interop.runtimes import browser

            return Format(
                web.write,
                web.refusals,
                browser.open_folder,
                web.QUANTIZATIONS,
                web.represented,
                web.allowed,
                arithmetic="int8 products, float32 sums",
                chooses_direction=True,
            )
    raise ConfigurationError(f"there is no format '{name}': choose {', '.join(FORMATS)}")


@dataclass(frozen=True)
class ExportOptions:
    """How to export.

    Args:
        quantization: the type of the weights; by default the format's first.
        lines: file with source lines for the certificate.
        references: file with their reference translations, for the BLEU of both sides.
        count: number of lines.
        beam: of the certificate's beam search.
        certificate: whether to compare at all.
        languages: source and target of a model that has several, or that does not name its own.
        alpha: length penalty of the search that is written; by default the model's.
        length_penalty: its form, likewise.
    """

    quantization: str | None = None
    lines: Path | None = None
    references: Path | None = None
    count: int = 200
    beam: int = 5
    certificate: bool = True
    languages: Languages = field(default_factory=Languages)
    alpha: float | None = None
    length_penalty: Literal["power", "wu"] | None = None

    @property
    def search(self) -> dict[str, Any]:
        """The settings of the search that differ from the model's."""
        wishes = {"alpha": self.alpha, "length_penalty": self.length_penalty}
        return {name: value for name, value in wishes.items() if value is not None}


def export_model(
    model: str | Path,
    format: FormatName,
    output: str | Path,
    options: ExportOptions | None = None,
    say: Callable[[str], None] = print,
) -> Certificate:
    """Write a model in the format of another program, and compare both.

    Args:
        model: a model or run folder.
        format: name of the format.
        output: a new or empty folder.
        options: quantization, and on what to compare.
        say: called with lines about the progress.

    Raises:
        ConfigurationError: the output exists; a quantization that the format does not have, or a search for a format
            that has none; a model that the format cannot carry. Nothing is written.
        FormatError: not a model, or damaged.
        CertificateError: both sides differ. Nothing is left.
        MissingDependencyError: a package that writes the format is not installed.
        SurroundingsError: the folder cannot be written.
    """
    model, output, options = Path(model), Path(output), options or ExportOptions()
    check_new_folder(output)
    if format == "web":
        model = _small_enough(model, say)
    form = find_format(format)
    quantization = options.quantization or form.quantizations[0]
    if quantization not in form.quantizations:
        raise ConfigurationError(
            f"{format} has no quantization '{quantization}': choose {', '.join(form.quantizations)}"
        )
    if options.search and not form.has_search:
        raise ConfigurationError(
            f"{format} has no settings of a search: leave out --alpha and --length-penalty, which would change nothing"
        )
    bundle = load_bundle(model, languages=options.languages).toward(options.languages)
    parts = _parts_for(form, bundle, model, format, options.languages)
    if options.search:
        search = build(Search, {**parts.generation.model_dump(), **options.search}, "the search that is written")
        parts = replace(parts, generation=search)
    refuse(form.refusals(parts), f"{model}: cannot be exported to {format}")
    with atomic_folder(output) as draft:
        form.write(parts, draft, quantization)
        certificate = _certify(form, format, draft, parts, quantization, model, options, say)
        if certificate.state == "failed":
            raise CertificateError(f"{output}: not written: {certificate.reason}")
        add_certificate(draft, certificate)
    say(f"{output}: {certificate.summary()}")
    return certificate


def _small_enough(model: Path, say: Callable[[str], None]) -> Path:
    """The small model of a run in stages if it is nearly as good as the best: who opens a page waits for its bytes.

    A model folder of the run, such as its ``best``, is exported itself.
    """
    small = small_model(model)
    if small is None:
        return model
    folder, behind = small
    if behind > NEAR:
        say(f"exporting {model / 'best'}: {folder} is {behind:.2f} BLEU behind it; to export that instead, name it")
        return model
    say(f"exporting {folder}, {behind:.2f} BLEU behind {model / 'best'}; to export the best model, name it")
    return folder


def _parts_for(form: Format, bundle: Bundle, model: Path, format: FormatName, languages: Languages) -> TranslatorParts:
    """The parts of a model as a format carries them.

    Raises:
        ConfigurationError: it has several directions, and neither is one named nor does the format carry them all.
    """
    if not form.chooses_direction:
        bundle.require_direction(model)
    parts = parts_of(bundle, f"{model}: cannot be exported to {format}")
    parts = replace(
        parts,
        source_language=parts.source_language or languages.source,
        target_language=parts.target_language or languages.target,
    )
    if form.chooses_direction:
        open_choice = bundle.directions and not bundle.source_tokenizer.prefix
        return replace(parts, directions=tuple(find_directions(bundle.directions, languages)) if open_choice else ())
    return replace(
        parts,
        source_tokenizer=as_library_tokenizer(parts.source_tokenizer),
        target_tokenizer=as_library_tokenizer(parts.target_tokenizer),
    )


def parts_of(bundle: Bundle, refused: str) -> TranslatorParts:
    """The parts of a loaded translator.

    Args:
        bundle: the translator.
        refused: the beginning of the message for a network that no format carries.

    Raises:
        ConfigurationError: the network is not a Transformer.
    """
    config = bundle.model.config
    if not isinstance(config, TransformerConfig):
        raise ConfigurationError(
            f"{refused}: its network is recurrent, and other programs have formats for Transformers only"
        )
    return TranslatorParts(
        config,
        {name: tensor.detach() for name, tensor in bundle.model.named_parameters()},
        bundle.source_tokenizer,
        bundle.target_tokenizer,
        bundle.generation,
        bundle.source_language,
        bundle.target_language,
    )


def refuse(reasons: Sequence[str], refused: str) -> None:
    """Raise ConfigurationError if there are reasons."""
    if reasons:
        raise ConfigurationError(f"{refused}: it has {'; '.join(reasons)}")


def _certify(
    form: Format,
    name: FormatName,
    draft: Path,
    parts: TranslatorParts,
    quantization: str,
    model: Path,
    options: ExportOptions,
    say: Callable[[str], None],
) -> Certificate:
    """The certificate of a draft."""
    if not options.certificate:
        return not_run(name, quantization, "not requested")
    try:
        runtime = form.open(draft, parts, quantization)
    except SurroundingsError as error:
        return not_run(name, quantization, str(error))
    with runtime if isinstance(runtime, AbstractContextManager) else nullcontext():
        lines = certificate_lines(
            model,
            parts.source_tokenizer,
            options.lines,
            options.count,
            references=options.references,
            longest=positions_of(runtime),
        )
        terms = Terms(
            name,
            lines,
            options.beam,
            form.allowed(quantization),
            quantization,
            form.arithmetic,
            form.inexact_tokenizer(parts),
        )
        certificate = _certify_directions(form.represented(parts, quantization), runtime, terms, say)
    if quantization == "float32" or form.open_as_used is None:
        return certificate
    say(f"translating {len(lines.texts)} lines on both sides in their own precision")
    used, arithmetic = form.open_as_used(draft, parts)
    ours = OurSide(parts)
    search = search_of(parts, [ours.ended(ids) for ids in ours.encode(lines.texts)], options.beam, used.positions)
    rounding = measure_rounding(ours, used, lines, search, arithmetic, parts.target_language, say)
    return replace(certificate, rounding=rounding)


def _certify_directions(
    parts: TranslatorParts, runtime: TokenizerRuntime, terms: Terms, say: Callable[[str], None]
) -> Certificate:
    """The certificate of a model; of one with several directions, which divide the lines."""
    if not parts.directions or not isinstance(runtime, DirectedRuntime):
        return certify(parts, runtime, terms, say)
    found: dict[str, Certificate] = {}
    for number, direction in enumerate(parts.directions):
        own = replace(terms, lines=terms.lines.part(slice(number, None, len(parts.directions))))
        say(f"comparing {direction}")
        found[str(direction)] = certify(parts.toward(direction), runtime.toward(direction), own, say)
    return join_certificates(found)


def add_certificate(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json, and a section of README.md."""
    with write_errors(folder):
        (folder / FILE).write_text(certificate.to_json(), encoding="utf-8", newline="\n")
        readme = folder / "README.md"
        text = readme.read_text(encoding="utf-8").rstrip() + "\n\n" if readme.exists() else ""
        readme.write_text(text + card.section(certificate), encoding="utf-8", newline="\n")
