"""mBART-50 folders of `transformers`.

Tang et al. (2020), "Multilingual translation with extensible multilingual pretraining and finetuning". A pre-norm
Transformer with learned positions, a norm after the embeddings and one after each stack. The table of positions begins
with two rows that no position uses. Decoding begins with the end symbol and the token of the target language. mBART
of 25 languages, which has the language after the text, is refused.
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
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX
    ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN
    pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
_OFFSET = 2
"""Rows of the tables of positions before the first position."""


def recognizes(folder: Path) -> bool:
    """Whether the folder holds an mBART model."""
    return bart_folder.model_type(folder) == "mbart"


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in an mBART-50 folder.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
        ConfigurationError: a language is not named, or the model does not have it.
        MissingDependencyError: ``sentencepiece`` is not installed, and the vocabulary needs it.
    """
    config = read_json(folder / CONFIG)
    tokenizer = tokenizer_settings(folder).get("tokenizer_class")
    if tokenizer in ("MBartTokenizer", "MBartTokenizerFast"):
        raise FormatError(
            f"{folder}: its tokenizer is a {tokenizer} (mBART of 25 languages), which puts the language after the "
            "text; multihead reads mBART-50 (MBart50Tokenizer)"
        )
    tensors = bart_folder.without_rows(folder, read_weights(folder), _OFFSET)
    settings = bart_folder.read_settings(
        folder,
        config,
        tensors,
        norm="pre",
        positions="learned",
        max_positions=len(tensors[bart_folder.POSITIONS[0]]),
        embedding_norm=True,
    )
    generation = bart_folder.generation_settings(folder, config)
    sides = read_sides(folder, read_vocabulary(folder, config, _CODES.split()), generation, languages)
    return TranslatorParts(
        settings,
        bart_folder.our_weights(folder, settings, tensors),
        sides.source,
        sides.target,
        bart_folder.read_search(folder, config),
        sides.source_language,
        sides.target_language,
    )
