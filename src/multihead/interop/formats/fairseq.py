"""Reads Transformers of fairseq (Ott et al. 2019).

    checkpoint_best.pt     or model.pt, checkpoint_last.pt, model1.pt (of an ensemble, the first): options and weights
    dict.SOURCE.txt        a word and its count on each line; ids 0 to 3 are <s>, <pad>, </s> and <unk>
    dict.TARGET.txt
    bpecodes               or code, bpe.codes: codes of fastBPE or subword-nmt
    sentencepiece.bpe.model, or spm.model: a SentencePiece model

Codes and model may also have the name that the options give them. Without codes and model, texts must be cut as the
training text was. fairseq starts the decoder with the end symbol; its positions start at 2 and are sines, then cosines;
learned ones have two unused rows in front. Text is Moses-tokenized if the options name that tokenizer.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import load_checkpoint, options, section
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.pieces import find, read_codes, read_lines, with_sentencepiece
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.model_folder import parse_settings
from multihead.models.config import TransformerConfig
from multihead.text.foreign import SpecialIds
from multihead.text.preparation import Preparation, PreparedTokenizer
from multihead.text.tokenizer import Tokenizer
from multihead.text.word_pieces import WordPieceTokenizer

_CHECKPOINTS = ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt", "model1.pt")
_CODES = ("bpecodes", "code", "codes", "bpe.codes", "bpe.code", "*.codes")
_MODELS = ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "*.spm", "*.model")
_OPTIONS_OF_CODES = ("bpe_codes",)
_OPTIONS_OF_MODELS = ("sentencepiece_model", "sentencepiece_vocab")
"""Options with the path of such a file; the last one is that of fairseq 0.9."""
_NOT_SET = "???"
"""What fairseq keeps for an option that has no value."""
_BPE = ("sentencepiece", "subword_nmt", "fastbpe")
_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_IDS = SpecialIds(pad=1, unk=3, bos=2, eos=2)
_FIRST_POSITION = 2

_ACTIVATIONS = ("relu", "gelu")

_REFUSED = {
    "adaptive_softmax_cutoff": "an adaptive softmax",
    "adaptive_input": "adaptive input embeddings",
    "char_inputs": "character inputs",
    "no_token_positional_embeddings": "no positions",
    "no_cross_attention": "a decoder without cross-attention",
    "cross_self_attention": "attention to source and target at once",
    "encoder_layers_to_keep": "pruned layers (encoder_layers_to_keep)",
    "decoder_layers_to_keep": "pruned layers (decoder_layers_to_keep)",
    "base_layers": "BASE layers",
    "quant_noise_pq": "product quantization",
}

_IGNORED = r"(^|\.)(version|_float_tensor|weights)$|^decoder\.(output_projection|embed_out)"


def recognizes(folder: Path) -> bool:
    """Whether the folder has a checkpoint and dictionaries as fairseq names them."""
    return any((folder / name).is_file() for name in _CHECKPOINTS) and any(folder.glob("dict.*.txt"))


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in a folder of fairseq.

    Args:
        folder: checkpoint, dictionaries, and codes or a SentencePiece model.
        languages: which dictionaries, if the checkpoint does not say and there are several.

    Raises:
        FormatError: something is missing or damaged, or the model is of a variant that multihead does not read.
        MissingDependencyError: the vocabulary needs a library that is not installed.
    """
    path = find(folder, _CHECKPOINTS, "a checkpoint")
    checkpoint = load_checkpoint(path)
    settings = _Settings(checkpoint)
    settings.refuse(path)
    weights = _current_names(section(checkpoint, "model", path))
    config, found = _network(weights, settings, path)
    source, target = _languages(folder, settings, languages)
    return TranslatorParts(
        config,
        found,
        _tokenizer(folder, source, settings),
        _tokenizer(folder, target, settings),
        Search(beam=5, alpha=1.0, min_length=1),
        source,
        target,
    )


class _Settings:
    """The options of a checkpoint, which older versions keep in ``args`` and newer ones in sections of ``cfg``."""

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        sections = options(checkpoint.get("cfg"))
        old = options(checkpoint.get("args"))
        self._model = options(sections.get("model")) or old
        self.task = self._part(sections, old, "task")
        self.bpe = self._part(sections, old, "bpe")
        self.tokenizer = self._part(sections, old, "tokenizer")

    @staticmethod
    def _part(sections: Mapping[str, Any], old: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A section, with its kind under ``_name``; old options are one list for all sections."""
        part = options(sections.get(name))
        if part or not isinstance(old.get(name), str):
            return part
        return {**old, "_name": old[name]}

    def get(self, name: str, default: Any = None) -> Any:
        """An option by its flat name, such as ``encoder_layers``, which may be ``layers`` in a part ``encoder``."""
        if self._model.get(name) is not None:
            return self._model[name]
        side, _, rest = name.partition("_")
        found = options(self._model.get(side)).get(rest)
        return default if found is None else found

    def both(self, name: str, path: Path, default: Any = None) -> Any:
        """An option of encoder and decoder, which must agree."""
        encoder, decoder = (self.get(f"{side}_{name}", default) for side in ("encoder", "decoder"))
        if encoder != decoder or encoder is None:
            raise FormatError(
                f"{path}: encoder_{name} is {encoder} and decoder_{name} is {decoder}: multihead needs one value"
            )
        return encoder

    def refuse(self, path: Path) -> None:
        """Refuse a variant that multihead does not have.

        Raises:
            FormatError: names it.
        """
        kind = str(self.task.get("_name", "translation"))
        if kind not in ("translation", "translation_with_backtranslation"):
            raise FormatError(f"{path}: a model of fairseq's task '{kind}'; multihead reads those of 'translation'")
        for name, what in _REFUSED.items():
            if self.get(name):
                raise FormatError(f"{path}: the model has {what}, which multihead does not read")
        tokenizer = self.tokenizer.get("_name")
        if tokenizer not in (None, "space", "moses"):
            raise FormatError(
                f"{path}: text is cut by fairseq's tokenizer '{tokenizer}' first; multihead reads models of 'moses', "
                "'space', or none"
            )


def network(
    weights: Mapping[str, Tensor], options: Mapping[str, Any], path: Path
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The settings and weights of a network of fairseq.

    Args:
        weights: by fairseq's names.
        options: by fairseq's names, such as ``encoder_attention_heads``.
        path: the file, for messages.

    Raises:
        FormatError: something is missing, or the model is of a variant that multihead does not read.
    """
    return _network(_current_names(weights), _Settings({"args": dict(options)}), path)


def _network(
    weights: Mapping[str, Tensor], settings: _Settings, path: Path
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    config = _config(weights, settings, path)
    found = rename(weights, _table(config), _IGNORED, path)
    if config.positions == "learned":
        for side in ("source_embedding", "target_embedding"):
            name = f"{side}.positions.table.weight"
            found[name] = found[name][_FIRST_POSITION:]
    return config, fit(found, config)


def _config(weights: Mapping[str, Tensor], settings: _Settings, path: Path) -> TransformerConfig:
    arch = settings.get("arch", settings.get("_name", "unknown"))
    if "encoder.layers.0.self_attn.q_proj.weight" not in weights:
        raise FormatError(f"{path}: fairseq's architecture '{arch}'; multihead reads its encoder-decoder Transformers")
    source, target = (take(weights, f"{side}.embed_tokens.weight", path) for side in ("encoder", "decoder"))
    output = weights.get("decoder.output_projection.weight", weights.get("decoder.embed_out"))
    if output is None and not settings.get("share_decoder_input_output_embed", settings.get("share_all_embeddings")):
        raise FormatError(f"{path}: the weight 'decoder.output_projection.weight' is missing")
    layers = {side: count_layers(weights, f"{side}.layers") for side in ("encoder", "decoder")}
    for side, count in layers.items():
        if count != settings.get(f"{side}_layers", count):
            raise FormatError(f"{path}: {settings.get(f'{side}_layers')} {side} layers are expected, and {count} found")
    activation = settings.get("activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise FormatError(f"{path}: the activation '{activation}'; multihead reads {', '.join(_ACTIVATIONS)}")
    pre = settings.both("normalize_before", path, default=False)
    learned = "encoder.embed_positions.weight" in weights
    values = {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "padding_id": _IDS.pad,
        "width": source.shape[1],
        "heads": settings.both("attention_heads", path),
        "inner": max(take(weights, f"{side}.layers.0.fc1.weight", path).shape[0] for side in layers),
        "feed_forward": activation,
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "positions": "learned" if learned else "sinusoidal",
        "sinusoid": "fairseq",
        "max_positions": len(weights["encoder.embed_positions.weight"]) - _FIRST_POSITION if learned else 512,
        "embedding_scale": "none" if settings.get("no_scale_embedding") else "embedding",
        "embedding_norm": "encoder.layernorm_embedding.weight" in weights,
        "norm": "pre" if pre else "post",
        "final_norm": "encoder.layer_norm.weight" in weights,
        "norm_eps": 1e-5,
        "dropout": float(settings.get("dropout", 0.1)),
        "tie_embeddings": same(target, source),
        "tie_output": same(output, target),
    }
    return parse_settings(TransformerConfig, values, path)


def _table(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for ours, side in (("source", "encoder"), ("target", "decoder")):
        table[f"{ours}_embedding.table"] = (f"{side}.embed_tokens",)
        if config.positions == "learned":
            table[f"{ours}_embedding.positions.table"] = (f"{side}.embed_positions",)
        if config.embedding_norm:
            table[f"{ours}_embedding.norm"] = (f"{side}.layernorm_embedding",)
        if config.final_norm:
            table[f"{side}_norm"] = (f"{side}.layer_norm",)
    if not config.tie_output:
        table["output"] = ("decoder.output_projection",)
    for i in range(config.encoder_layers):
        table |= _layer("encoder", i)
    for i in range(config.decoder_layers):
        table |= _layer("decoder", i)
    return table


def _layer(side: str, index: int) -> dict[str, tuple[str, ...]]:
    ours, theirs = f"{side}.{index}", f"{side}.layers.{index}"
    table: dict[str, tuple[str, ...]] = {
        f"{ours}.self_residual.norm": (f"{theirs}.self_attn_layer_norm",),
        f"{ours}.feed_forward.expand": (f"{theirs}.fc1",),
        f"{ours}.feed_forward.contract": (f"{theirs}.fc2",),
        f"{ours}.feed_forward_residual.norm": (f"{theirs}.final_layer_norm",),
    }
    kinds = {"self": "self_attn"}
    if side == "decoder":
        kinds["cross"] = "encoder_attn"
        table[f"{ours}.cross_residual.norm"] = (f"{theirs}.encoder_attn_layer_norm",)
    for kind, name in kinds.items():
        table[f"{ours}.{kind}_attention.in_projection"] = tuple(f"{theirs}.{name}.{part}_proj" for part in "qkv")
        table[f"{ours}.{kind}_attention.output_projection"] = (f"{theirs}.{name}.out_proj",)
    return table


def _current_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of today's fairseq, which renames those of checkpoints from before 2019."""
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        packed = re.fullmatch(r"(.*\.)in_proj_(weight|bias)", name)
        norm = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name)
        if packed:
            parts = zip("qkv", tensor.chunk(3), strict=True)
            found |= {f"{packed.group(1)}{part}_proj.{packed.group(2)}": rows for part, rows in parts}
        elif norm:
            found[f"{norm.group(1)}.{norms[norm.group(2)][int(norm.group(3))]}.{norm.group(4)}"] = tensor
        elif name == "decoder.embed_out":
            found["decoder.output_projection.weight"] = tensor
        else:
            found[name] = tensor
    return found


def _languages(folder: Path, settings: _Settings, languages: Languages) -> tuple[str, str]:
    """The names of the two dictionaries."""
    source = languages.source or settings.task.get("source_lang")
    target = languages.target or settings.task.get("target_lang")
    if source and target:
        return str(source), str(target)
    there = ", ".join(sorted(path.name for path in folder.glob("dict.*.txt")))
    raise FormatError(
        f"{folder}: the checkpoint does not name its languages, and the dictionaries are {there}: name them with "
        "--source-language and --target-language"
    )


def _tokenizer(folder: Path, language: str, settings: _Settings) -> Tokenizer:
    vocabulary = _dictionary(folder / f"dict.{language}.txt")
    kind = settings.bpe.get("_name")
    if kind is not None and kind not in _BPE:
        raise FormatError(f"{folder}: a vocabulary of '{kind}'; multihead reads those of {', '.join(_BPE)}")
    models, lists = _expected(settings, _OPTIONS_OF_MODELS, _MODELS), _expected(settings, _OPTIONS_OF_CODES, _CODES)
    model = find(folder, models, "the SentencePiece model", optional=kind != "sentencepiece")
    codes = find(folder, lists, "the codes of the byte-pair encoding", optional=kind in (None, "sentencepiece"))
    inner: Tokenizer
    if kind == "sentencepiece" or (kind is None and codes is None and model is not None):
        assert model is not None
        inner = with_sentencepiece(model, vocabulary, _IDS)
    else:
        separator = str(settings.bpe.get("bpe_separator") or "@@")
        inner = WordPieceTokenizer(
            vocabulary, _IDS, control=[0], codes=None if codes is None else read_codes(codes), separator=separator
        )
    if settings.tokenizer.get("_name") != "moses":
        return inner
    preparation = Preparation(
        moses=language,
        split_dashes=not settings.tokenizer.get("moses_no_dash_splits", False),
        escape=not settings.tokenizer.get("moses_no_escape", False),
    )
    return PreparedTokenizer(inner, preparation)


def _expected(settings: _Settings, names: Sequence[str], usual: Sequence[str]) -> Sequence[str]:
    """The names of a file: the last part of the path that one of the options ``names`` has, then the usual ones.

    A file of another name is taken only where no option has a path.
    """
    paths = [Path(str(settings.bpe[name])) for name in names if settings.bpe.get(name) not in (None, _NOT_SET)]
    named = [glob.escape(path.name) for path in paths if path.name]
    return (*named, *(name for name in usual if "*" not in name)) if named else usual


def _dictionary(path: Path) -> list[str]:
    """The word of each id."""
    words = list(_SPECIALS)
    known = set(words)
    for number, line in enumerate(read_lines(path), 1):
        word, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not word or not count.isdecimal():
            raise FormatError(f"{path}:{number}: expected a word and its count, got {line[:80]!r}")
        if word in known and not line.rstrip().endswith("#fairseq:overwrite"):
            raise FormatError(f"{path}:{number}: the word {word[:80]!r} is listed twice")
        known.add(word)
        words.append(word)
    return words
