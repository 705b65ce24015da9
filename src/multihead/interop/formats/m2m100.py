"""M2M-100 and NLLB-200 folders of `transformers`.

Fan et al. (2021), "Beyond English-centric multilingual machine translation"; NLLB Team (2022), "No language left
behind". Both are pre-norm Transformers with fairseq's sinusoids; decoding begins with the end symbol and the token of
the target language. Their vocabularies differ (`multilingual`): M2M-100 names a language ``de``, NLLB ``deu_Latn``.
"""

from __future__ import annotations

from pathlib import Path

from multihead.errors import FormatError
from multihead.interop.formats import bart_folder
from multihead.interop.formats.bart_folder import tokenizer_settings
from multihead.interop.formats.multilingual import read_sides, read_vocabulary
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.tensors import read_weights
from multihead.model_folder import CONFIG, read_json

_CODES = """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id
    ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si
    sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_LISTS = {"m2m100": _CODES.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}
"""The languages of each list that tokenizer_config.json can name, in the order of their ids."""

_DEFAULTS = {"scale_embedding": True, "attention_dropout": 0.1}
"""What their settings are where config.json does not say, unlike those of the other models of `bart_folder`."""

_CLASSES = ("M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast")


def recognizes(folder: Path) -> bool:
    """Whether the folder holds an M2M-100 or NLLB-200 model."""
    return bart_folder.model_type(folder) == "m2m_100"


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in an M2M-100 or NLLB-200 folder.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
        ConfigurationError: a language is not named, or the model does not have it.
        MissingDependencyError: ``sentencepiece`` is not installed, and the vocabulary needs it.
    """
    config = read_json(folder / CONFIG)
    written = tokenizer_settings(folder)
    tokenizer = written.get("tokenizer_class")
    if tokenizer is not None and tokenizer not in _CLASSES:
        raise FormatError(
            f"{folder}: its tokenizer is a {tokenizer}, whose rules multihead does not know; it reads "
            f"{', '.join(_CLASSES[:3])}"
        )
    # fairseq counts positions from one after padding
    bart_folder.refuse(folder, config, {"pad_token_id": (1,)})
    bart_folder.refuse(folder, written, {"legacy_behaviour": (False,)}, "tokenizer_config.json")
    tensors = read_weights(folder)
    settings = bart_folder.read_settings(folder, _DEFAULTS | config, tensors, norm="pre", sinusoid="fairseq")
    listed = str(written.get("language_codes", "m2m100"))
    if listed not in _LISTS:
        raise FormatError(f"{folder}: language_codes is {listed!r}; this multihead knows {' and '.join(_LISTS)}")
    vocabulary = read_vocabulary(folder, config, [f"__{code}__" for code in _LISTS[listed]])
    generation = bart_folder.generation_settings(folder, config)
    sides = read_sides(folder, vocabulary, generation, languages)
    return TranslatorParts(
        settings,
        bart_folder.our_weights(folder, settings, tensors, lambda name: "embed_positions" in name),
        sides.source,
        sides.target,
        bart_folder.read_search(folder, config),
        sides.source_language,
        sides.target_language,
    )
