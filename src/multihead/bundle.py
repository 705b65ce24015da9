"""A translator on disk: network, tokenizers and search settings.

    config.json            format version, settings of the network, SHA-256 of weights and tokenizers, languages
    model.safetensors      the weights (a shared tensor once); no pickle is ever loaded
    tokenizer.json         or source.tokenizer.json and target.tokenizer.json, if the sides differ
    generation.json        default settings of search
    metrics.json           scores on the validation set
    README.md              a model card
    manifest.json          size and SHA-256 of every file

`multihead.model_folder` defines the first two and the format version, `multihead.sealed` the last. Loading opens the
folder once and checks that all parts belong together.

A folder that another program wrote is loaded, too: `multihead.interop.formats` reads it, and only this file knows that
there are such folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from multihead.decoding.search import Search, refuse_unstored
from multihead.engine.stored import StoredTransformer, read_stored
from multihead.errors import ConfigurationError, FormatError, shortened, shown
from multihead.files import is_unfinished, read_stable, sha256_of
from multihead.model_folder import (
    CONFIG,
    COPY_AGAIN,
    FORMAT_VERSION,
    WEIGHTS,
    Rounding,
    architecture_of,
    load_network,
    open_model,
    parse_settings,
    read_config,
    save_folder,
    write_json,
)
from multihead.models.config import ARCHITECTURES, NetworkConfig, TransformerConfig
from multihead.sealed import OpenFolder
from multihead.text.languages import Direction, Languages, find_directions, listed
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

if TYPE_CHECKING:
    from multihead.interop.formats.opening import Format
    from multihead.models.network import Network


def build_network(config: NetworkConfig) -> Network:
    """The network that ``config`` describes; parameters are drawn from PyTorch's current generator."""
    if isinstance(config, TransformerConfig):
        from multihead.models.transformer import Transformer

        return Transformer(config)
    from multihead.models.recurrent.network import RecurrentTranslator

    return RecurrentTranslator(config)


__all__ = [
    "FORMAT_VERSION",
    "SHORTLIST",
    "Bundle",
    "load_bundle",
    "locate",
    "model_digest",
    "model_digests",
    "save_bundle",
    "weights_digest",
    "weights_digests",
]

SHORTLIST = "shortlist.safetensors"
"""The file of a shortlist in a model folder (`translating.shortlist`)."""

_LONGEST_CODE = 100
"""Characters of a language's code."""
_SHARED, _SEPARATE = ("tokenizer.json",), ("source.tokenizer.json", "target.tokenizer.json")
_BESIDE = frozenset({SHORTLIST, "README.md", ".gitattributes", ".gitignore", ".DS_Store"})
"""Files that come and go beside a model of another program, and that no reader opens."""


@dataclass(frozen=True)
class Bundle:
    """A translator in memory."""

    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    generation: Search
    """How it is searched by default; only the fields of `Search.stored` are kept."""
    source_language: str | None = None
    target_language: str | None = None
    directions: tuple[Direction, ...] = ()
    """Of a model in which a symbol at the start of the source says into which language (`text.language_tokens`)."""

    @property
    def searched(self) -> Network | StoredTransformer:
        """The network, or the weights that it will be built of: for what needs the settings or the compiled search."""
        return self.model

    def __post_init__(self) -> None:
        object.__setattr__(self, "source_tokenizer", self.source_tokenizer.reading)
        object.__setattr__(self, "target_tokenizer", self.target_tokenizer.plain)

    def toward(self, languages: Languages) -> Bundle:
        """The model for one of its directions; as it is if there is no choice, or nothing chooses between targets.

        Raises:
            ConfigurationError: it has no such direction.
        """
        if not self.directions:
            return self
        found = find_directions(self.directions, languages)
        sources, targets = ({direction[side] for direction in found} for side in (0, 1))
        if len(targets) > 1:
            return self
        from multihead.text.language_tokens import toward

        source, target = (*sources,)[0] if len(sources) == 1 else languages.source, found[0].target
        tokenizer = toward(self.source_tokenizer, target)
        return replace(self, source_tokenizer=tokenizer, source_language=source, target_language=target)

    def require_direction(self, name: object) -> None:
        """Raise ConfigurationError if it is not decided into which language it translates."""
        if self.directions and not self.source_tokenizer.prefix:
            raise ConfigurationError(
                f"{name}: this model translates {listed(self.directions)}; say which, by --target-language (and "
                "--source-language), or languages=Languages(source, target) in Python"
            )


class StoredBundle(Bundle):
    """A translator whose network is built when somebody asks for it; until then PyTorch is not imported."""

    @classmethod
    def of(cls, stored: StoredTransformer, *parts: Any) -> StoredBundle:
        """A bundle of weights and the other fields of `Bundle`, in order."""
        made, names = cls.__new__(cls), [field.name for field in fields(Bundle)[1:]]
        made.__dict__.update(zip(names, parts, strict=True), _stored=stored)
        made.__post_init__()
        return made

    @cached_property
    def model(self) -> Network:
        """The network."""
        from multihead.engine.networks import network_of

        stored: StoredTransformer = self.__dict__.pop("_stored")
        return network_of(stored).eval()

    @property
    def searched(self) -> Network | StoredTransformer:
        """The weights until there is a network."""
        stored: StoredTransformer | None = self.__dict__.get("_stored")
        return self.model if stored is None else stored


def save_bundle(
    folder: Path,
    bundle: Bundle,
    metrics: dict[str, Any],
    made_by: str,
    rounding: Rounding | None = None,
    others: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder atomically; an existing model is replaced.

    Args:
        folder: the folder to write.
        bundle: the translator.
        metrics: scores for metrics.json and the card.
        made_by: a sentence on the model's origin, for the card.
        rounding: quantization of the matrices (`multihead.model_folder`); None = float32.
        others: other files to be written, by name.

    Raises:
        FormatError: the folder holds something that is not a model; it is left untouched.
        SurroundingsError: the folder cannot be written; an existing model is left untouched.
    """
    shared = bundle.source_tokenizer.digest == bundle.target_tokenizer.digest
    pair = (bundle.source_tokenizer, bundle.target_tokenizer)
    tokenizers = dict(zip(_SHARED if shared else _SEPARATE, pair, strict=False))

    def write_parts(draft: Path) -> dict[str, Any]:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        write_json(draft / "generation.json", bundle.generation.stored_values())
        write_json(draft / "metrics.json", metrics)
        (draft / "README.md").write_text(_card(bundle, metrics, made_by), encoding="utf-8", newline="\n")
        for name, content in (others or {}).items():
            (draft / name).write_bytes(content)
        return {
            "tokenizers": {name: tokenizer.digest for name, tokenizer in tokenizers.items()},
            "source_language": bundle.source_language,
            "target_language": bundle.target_language,
            **({"directions": bundle.directions} if bundle.directions else {}),
        }

    save_folder(folder, bundle.model, bundle.model.config, write_parts, rounding)


def load_bundle(
    folder: Path, device: str = "cpu", languages: Languages | None = None, *, lazily: bool = False
) -> Bundle:
    """Load a model folder, the best model of a run folder, or a model of another program.

    Args:
        folder: the folder.
        device: where the network goes.
        languages: source and target, for a model of another program that has several. A model of ours has all of its
            directions, and `Bundle.toward` chooses one.
        lazily: build no network, and leave PyTorch alone, before somebody asks for it; where that is not possible, it
            is built as ever.

    Raises:
        FormatError: the folder is none of these, something in it is missing or damaged, or a tokenizer is not the one
            that the model was trained with.
    """
    found = _find(folder)
    if not isinstance(found, OpenFolder):
        return _load_foreign(*found, device, languages or Languages())
    with found:
        config = read_config(found)
        network_config = _network_config(config, found.path)
        generation = _read_search(found)
        digests = config.get("tokenizers")
        if not isinstance(digests, dict) or tuple(sorted(digests)) not in (_SHARED, _SEPARATE):
            raise FormatError(f"{found.path / CONFIG}: damaged: it names no tokenizers; {COPY_AGAIN}")
        tokenizers = [_read_tokenizer(found, name, digests[name]) for name in sorted(digests)]
        languages_told = [_language(config, name, found) for name in ("source_language", "target_language")]
        directions = _directions(config, tokenizers[0], found)
        parts: tuple[Any, ...] = (tokenizers[0], tokenizers[-1], generation, *languages_told, directions)
        if lazily and device == "cpu" and isinstance(network_config, TransformerConfig) and not directions:
            stored = read_stored(network_config, found, config.get("weights"))
            if stored is not None:
                return StoredBundle.of(stored, *parts)
        model = load_network(network_config, lambda: build_network(network_config), found, config)
    return Bundle(model.eval().to(device), *parts)


def locate(folder: Path) -> Path:
    """The model folder: ``folder`` itself, or the best model of a run folder.

    Raises:
        FormatError: there is no model folder, or only a part of one.
    """
    found = _find(folder)
    if not isinstance(found, OpenFolder):
        return found[0]
    found.close()
    return found.path


def read_directions(folder: Path) -> tuple[Direction, ...]:
    """The directions of a model that has several; none of any other.

    Raises:
        FormatError: there is no model, or it is damaged.
    """
    found = _find(folder)
    if not isinstance(found, OpenFolder):
        return ()
    with found:
        config = read_config(found)
        if "directions" not in config:
            return ()
        name = next((name for name in (*_SHARED, *_SEPARATE) if name in config.get("tokenizers", {})), _SHARED[0])
        return _directions(config, Tokenizer.read(found, name), found)


def weights_digest(folder: Path) -> str:
    """SHA-256 of the weights; for a model of another program, of all files that a reader may open."""
    return weights_digests(folder)[0]


def weights_digests(folder: Path) -> list[str]:
    """All digests that may have been recorded of the weights in a folder, `weights_digest` first.

    Up to version 0.6, that of a model of another program was of all files in its folder. What was made then, such as an
    adapter that took hours, remains of this model as long as no file has changed.
    """
    found = _find(folder)
    if isinstance(found, OpenFolder):
        with found:
            return [found.digest(WEIGHTS)]
    digests = read_stable(folder, lambda: _digests_of_files(folder))
    read, every = [digest for name, digest in digests.items() if _may_be_read(name)], list(digests.values())
    return list(dict.fromkeys(hashlib.sha256("".join(some).encode()).hexdigest() for some in (read, every)))


def _digests_of_files(folder: Path) -> dict[str, str]:
    """SHA-256 of all files below a folder, in the order of their names."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: sha256_of(files[name]) for name in sorted(files)}


def _may_be_read(name: str) -> bool:
    """Whether a reader of another program's models may open a file, by its path in the folder.

    None opens a file of a hidden folder, such as ``.git``, or one in `_BESIDE`. Every other one counts: the settings of
    some programs name their files, whatever they are called.
    """
    path = PurePosixPath(name)
    hidden = any(folder.startswith(".") for folder in path.parts[:-1])
    return not hidden and path.name not in _BESIDE and not is_unfinished(Path(path.name))


def model_digest(folder: Path) -> str:
    """Identifies the model in a folder: a hash of its weights, sizes and tokenizers.

    Raises:
        FormatError: not a model folder.
    """
    return model_digests(folder)[0]


def model_digests(folder: Path) -> list[str]:
    """All digests that may have been recorded of the model in a folder, `model_digest` first: see `weights_digests`.

    Raises:
        FormatError: not a model folder.
    """
    found, described = _find(folder), ""
    if isinstance(found, OpenFolder):
        with found:
            described = found.digest(CONFIG)
    elif (folder / CONFIG).is_file():
        described = sha256_of(folder / CONFIG)
    return [f"{described[:16]}-{digest[:16]}" for digest in weights_digests(folder)]


def _find(folder: Path) -> OpenFolder | tuple[Path, Format]:
    """The opened folder of a model of ours, or the folder of another program and its format.

    A folder counts as ours, too, if no other program is known to write such a folder.

    Raises:
        FormatError: there is no model folder, or only a part of one, or multihead does not read its format.
    """
    error: FormatError | None = None
    try:
        found = open_model(folder)
        if found.entries is not None or "format_version" in _described(found):
            return found
        found.close()
    except FormatError as raised:
        error = raised
    from multihead.interop.formats import opening

    form = opening.recognize(folder)
    if form is not None:
        return folder, form
    if opening.is_foreign(folder):
        raise opening.unsupported(folder) from None
    if error is not None:
        raise error
    return open_model(folder)


def _described(folder: OpenFolder) -> dict[str, Any]:
    """What config.json says; the folder is closed if it cannot be read."""
    try:
        return folder.read_json(CONFIG)
    except FormatError:
        folder.close()
        raise


def _load_foreign(folder: Path, form: Format, device: str, languages: Languages) -> Bundle:
    from multihead.interop.formats.opening import read_foreign

    parts = read_foreign(folder, languages, form)
    return Bundle(
        parts.build(folder).to(device),
        parts.source_tokenizer,
        parts.target_tokenizer,
        parts.generation,
        parts.source_language,
        parts.target_language,
    )


_OTHER_NETWORKS = {
    "pointer": "a pointer network, which does not translate; see `multihead pointer --help`",
    "hierarchical": "a classifier, which does not translate; see `multihead classify --help`",
    "bert-classifier": "a classifier, which does not translate; see `multihead classify --help`",
    "bert": "a BERT, which does not translate; see `multihead fill-mask --help`",
    "decoder": "a language model, which does not translate; see `multihead generate --help`",
}
"""Descriptions of the networks in such folders that are not translators."""


def _network_config(config: dict[str, Any], folder: Path) -> NetworkConfig:
    architecture = architecture_of(config)
    if architecture in _OTHER_NETWORKS:
        raise FormatError(f"{folder}: {_OTHER_NETWORKS[architecture]}")
    for name, cls in ARCHITECTURES.items():
        if name == architecture:
            return parse_settings(cls, config["model"], folder / CONFIG)
    raise FormatError(
        f"{folder / CONFIG}: describes a network '{shortened(architecture)}', but there are "
        f"{', '.join(ARCHITECTURES)}: a newer multihead wrote it, or the file is damaged"
    )


def _language(config: dict[str, Any], name: str, folder: OpenFolder) -> str | None:
    """The code of a language, or None if it is not known."""
    code = config.get(name)
    if code is not None and not (isinstance(code, str) and code.isprintable() and len(code) <= _LONGEST_CODE):
        raise FormatError(f"{folder.path / CONFIG}: damaged: {name} is {shown(code)}, not a language; {COPY_AGAIN}")
    return code


def _directions(config: dict[str, Any], tokenizer: Tokenizer, folder: OpenFolder) -> tuple[Direction, ...]:
    """The directions of a model of several; their targets have a symbol in the vocabulary."""
    rows = config.get("directions", [])
    try:
        found = tuple(Direction(*row) for row in rows)
        sources, targets = {direction.source for direction in found}, {direction.target for direction in found}
        sound = all(source is None or isinstance(source, str) for source in sources)
        sound = sound and targets <= {*tokenizer.languages} and bool(targets) == bool(tokenizer.languages)
    except TypeError:
        sound = False
    if not sound:
        raise FormatError(f"{folder.path / CONFIG}: damaged: directions are {shown(rows)}; {COPY_AGAIN}")
    return found


def _read_search(folder: OpenFolder) -> Search:
    path, values = folder.path / "generation.json", folder.read_json("generation.json")
    try:
        refuse_unstored(values)
    except ValueError as error:
        raise FormatError(f"{path}: {error}; the file is damaged: {COPY_AGAIN}") from None
    return parse_settings(Search, values, path)


def _read_tokenizer(folder: OpenFolder, name: str, digest: object) -> Tokenizer:
    tokenizer = Tokenizer.read(folder, name)
    if tokenizer.digest != digest:
        raise FormatError(
            f"{folder.path / name}: not the tokenizer that this model was trained with (its SHA-256 is "
            f"{tokenizer.digest[:12]}..., config.json says {str(digest)[:12]}...); {COPY_AGAIN}"
        )
    return tokenizer


def _card(bundle: Bundle, metrics: dict[str, Any], made_by: str) -> str:
    """The model card: README.md of a model folder."""
    config = bundle.model.config
    languages = f"{bundle.source_language or 'source'} to {bundle.target_language or 'target'}"
    chosen = ""
    if bundle.directions:
        languages, code = listed(bundle.directions), bundle.directions[0].target
        chosen = f", languages=Languages(target={code!r})"
    size = sum(p.numel() for p in bundle.model.parameters())
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in metrics.items()}
    measured = "\n".join("| {} | {} |".format(name, text.replace("|", "\\|")) for name, text in shown.items())
    kind = "byte-pair encoding" if isinstance(bundle.target_tokenizer, BytePairTokenizer) else "a vocabulary"
    unusual = ", ".join(f"{name} {value}" for name, value in _unusual(config).items())
    return (
        f"# Translator, {languages}\n\n{made_by}\n\n"
        f"{config.summary}, {size:,} parameters; "
        f"{kind} of {len(bundle.target_tokenizer)} entries.\n"
        + (f"Other than by default: {unusual}.\n" if unusual else "")
        + "\n"
        "```python\nfrom multihead import Translator\n"
        + ("from multihead.text.languages import Languages\n" if chosen else "")
        + f'\ntranslator = Translator.load("."{chosen})\nprint(translator.translate(["..."]))\n```\n\n'
        + (f"| measured | |\n|---|---|\n{measured}\n" if measured else "")
    )


def _unusual(config: NetworkConfig) -> dict[str, Any]:
    """Settings that differ from their defaults, without those that the card shows anyway."""
    fields, shown = type(config).model_fields, {"source_vocab", "target_vocab", "padding_id", *config.summary_fields}
    values = {name: getattr(config, name) for name in fields if name not in shown}
    return {name: value for name, value in values.items() if value != fields[name].default}
