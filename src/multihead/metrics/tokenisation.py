"""How scores tell the words of a language apart, and sacreBLEU's metrics set up so.

BLEU and TER count words. English ones stand between spaces and punctuation; Chinese and Japanese have no spaces. The
choice is part of a score's signature: scores with other ones cannot be compared (Post 2018).

    zh                              BLEU tok:zh (each Han character is a word), TER norm:yes asian:yes (the same)
    ja, ko, th, lo, km, my, bo, dz  BLEU tok:char, TER tok:char: characters
    all others, and not known       BLEU tok:13a, TER tok:tercom, which is words between spaces and ignores case

For Japanese and Korean sacreBLEU also has ``ja-mecab`` and ``ko-mecab``, whose packages not everybody has; characters
give the same score on every machine. Whoever wants the former names it. chrF counts characters in every language.
"""

from __future__ import annotations

from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from multihead.data.languages import primary
from multihead.errors import ConfigurationError

Tokenizer = Literal["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"]
"""sacreBLEU's names of ways to tell words apart, those that download nothing."""

# Written without spaces between words (or, in Korean, with spaces between larger units).
_BY_CHARACTER = frozenset({"ja", "ko", "th", "lo", "km", "my", "bo", "dz"})


def tokenizer_of(language: str | None) -> Tokenizer:
    """What BLEU's words are in a language, by its code ("en", "zh-TW")."""
    code = primary(language)
    if code == "zh":
        return "zh"
    return "char" if code in _BY_CHARACTER else "13a"


def bleu(language: str | None = None, tokenize: Tokenizer | None = None) -> BLEU:
    """BLEU, cased.

    Args:
        language: of the translations.
        tokenize: how words are told apart; by default as the language needs it.

    Raises:
        ConfigurationError: the package that a tokenizer needs is not installed.
    """
    name = tokenize or tokenizer_of(language)
    try:
        # force: or sacreBLEU logs a guess that the text was tokenised, wherever 100 lines end in " ."
        return BLEU(tokenize=name, force=True)
    except (ImportError, RuntimeError):
        extra = name.split("-")[0]
        raise ConfigurationError(
            f"tokenize: '{name}' needs packages which are not installed: pip install 'sacrebleu[{extra}]'; or leave it "
            "out: characters are counted then"
        ) from None


def ter(language: str | None = None) -> TER:
    """TER: edits (insertions, deletions, substitutions, shifts of a block) in percent of the reference's words."""
    name = tokenizer_of(language)
    if name == "zh":
        return TER(normalized=True, asian_support=True)
    if name == "char":
        words, by_character = BLEU(tokenize=name, force=True), TER(case_sensitive=True)
        # TER has no setting for it, but splits by its attribute of that name, as BLEU does.
        vars(by_character).update(tokenizer=words.tokenizer, tokenizer_signature=words.tokenizer_signature)
        return by_character
    return TER()


def metrics(language: str | None = None, tokenize: Tokenizer | None = None) -> dict[str, Metric]:
    """BLEU, chrF and TER for a language, as `bleu` and `ter`."""
    return {"BLEU": bleu(language, tokenize), "chrF": CHRF(), "TER": ter(language)}
