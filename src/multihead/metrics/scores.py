"""BLEU, chrF and TER from sacreBLEU, tokenized for the target language.

BLEU and TER count words. English words are separated by spaces and punctuation; Chinese and Japanese have no spaces.
The tokenization is part of a score's signature, and scores with different ones cannot be compared (Post 2018).

    zh                              BLEU tok:zh (each Han character is a word), TER norm:yes asian:yes (the same)
    ja, ko, th, lo, km, my, bo, dz  BLEU tok:char, TER tok:char: characters
    all others, and unknown         BLEU tok:13a, TER tok:tercom, which splits at spaces and ignores case

For Japanese and Korean sacreBLEU also has ``ja-mecab`` and ``ko-mecab``, which need further packages and must be
requested by name; characters give the same score on every machine. chrF counts characters in every language.

Scores are cased (TER tok:tercom is not) and computed on detokenized text, with their signatures. Papineni et al. 2002
(BLEU), Popović 2015 (chrF), Snover et al. 2006 (TER), Post 2018 (signatures). Intervals and significance tests are in
`metrics.significance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from multihead.data.corpus import primary_language
from multihead.errors import ConfigurationError, InputError

Tokenizer = Literal["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"]
"""sacreBLEU's tokenizers, except those that download data."""

# Scripts without spaces between words (or, in Korean, with spaces between larger units).
_BY_CHARACTER = frozenset({"ja", "ko", "th", "lo", "km", "my", "bo", "dz"})


def default_tokenizer(language: str | None) -> Tokenizer:
    """BLEU's tokenizer for a language code ("en", "zh-TW")."""
    code = primary_language(language)
    if code == "zh":
        return "zh"
    return "char" if code in _BY_CHARACTER else "13a"


def bleu_metric(language: str | None = None, tokenize: Tokenizer | None = None) -> BLEU:
    """Cased BLEU.

    Args:
        language: language code of the translations.
        tokenize: the tokenizer; by default chosen by language.

    Raises:
        ConfigurationError: a package that the tokenizer needs is not installed.
    """
    name = tokenize or default_tokenizer(language)
    try:
        # Without force, sacreBLEU warns of tokenized text whenever 100 lines end in " .".
        return BLEU(tokenize=name, force=True)
    except (ImportError, RuntimeError):
        extra = name.split("-")[0]
        raise ConfigurationError(
            f"tokenize: '{name}' needs packages that are not installed: pip install \"sacrebleu[{extra}]\"; or omit it "
            "to count characters"
        ) from None


def ter_metric(language: str | None = None) -> TER:
    """TER: edits (insertions, deletions, substitutions, block shifts) in percent of the reference's words."""
    name = default_tokenizer(language)
    if name == "zh":
        return TER(normalized=True, asian_support=True)
    if name == "char":
        words, by_character = BLEU(tokenize=name, force=True), TER(case_sensitive=True)
        # TER has no such setting, but like BLEU it splits by its attribute `tokenizer`.
        vars(by_character).update(tokenizer=words.tokenizer, tokenizer_signature=words.tokenizer_signature)
        return by_character
    return TER()


def all_metrics(language: str | None = None, tokenize: Tokenizer | None = None) -> dict[str, Metric]:
    """BLEU, chrF and TER for a language."""
    return {"BLEU": bleu_metric(language, tokenize), "chrF": CHRF(), "TER": ter_metric(language)}


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of a set of translations (0 to 100, more is better), with their signatures."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str

    def as_dict(self) -> dict[str, float | str]:
        """The scores as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"BLEU {self.bleu:6.2f}  {self.bleu_signature}\nchrF {self.chrf:6.2f}  {self.chrf_signature}"


def score(hypotheses: Sequence[str], references: Sequence[str], target_language: str | None = None) -> Scores:
    """Score translations against one reference each.

    Args:
        hypotheses: the translations, detokenized, one sentence each.
        references: the reference translations, in the same order.
        target_language: code such as "en", "zh" or "pt-BR", which decides BLEU's tokenization; None: 13a.

    Raises:
        InputError: there is nothing to score, or the numbers of translations and references differ.
    """
    check_lines(hypotheses, references)
    bleu, chrf = bleu_metric(target_language), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return Scores(
        bleu=float(bleu_score.score),
        chrf=float(chrf_score.score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each translation by itself; of the usual metrics, the one suited to single sentences.

    Raises:
        InputError: as `score`.
    """
    check_lines(hypotheses, references)
    chrf = CHRF()
    return [
        float(chrf.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Check that there is one reference for each translation.

    Raises:
        InputError: the numbers differ, there are none, or a single string is passed instead of a list.
    """
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise InputError("got one string to score, expected a list of sentences: score([hypothesis], [reference])")
    if len(hypotheses) != len(references):
        counts = f"{len(hypotheses)} translations but {len(references)} references"
        raise InputError(f"{counts}; expected one reference for each, in the same order")
    if not len(hypotheses):
        raise InputError("no translations to score; expected at least one sentence")
