"""Demo: generate data, train, translate and score, in three minutes.

Source and target are the same number, date or amount of money, written in two languages by the Unicode CLDR (through
Babel); see `data.toy.numbers`. The corpus is written to files, and everything after that works as with a user's own
files: `train`, the best model of the run, its translations, a score, a picture. Each pair of languages has its own
data, run and picture in the folder: ``data-de-en``, ``run-de-en``, ``attention-de-en.png``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead import work_folder
from multihead.data.toy.numbers import Example, possible_sources, split
from multihead.errors import ConfigurationError
from multihead.files import write_errors, write_text
from multihead.inspection.plots import attention_map
from multihead.metrics.scores import Scores, score
from multihead.runs.translator.train import train
from multihead.translating.translator import Translator

TRAIN, VALID, TEST = 40_000, 500, 2_000
"""Examples of each set; a test source is never a training source."""

SETTINGS: dict[str, Any] = {
    "vocab_size": 1_000,
    "width": 128,
    "heads": 4,
    "inner": 512,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "smoothing": 0.0,
    "batch_tokens": 4096,
    "updates": 700,
    "learning_rate": 4e-3,
    "warmup": 120,
    "average": 0.98,
    "validate_every": 175,
    "log_every": 35,
}
"""Every source has one right answer and examples are unlimited: a small network, without regularization."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured on its test set."""

    exact: dict[str, float]
    """Share of exactly right translations, by pattern."""
    exact_in_all: float
    scores: Scores
    picture: Path


def demo(
    folder: Path,
    *,
    source_language: str = "de",
    target_language: str = "en",
    seed: int = 1,
    say: Callable[[str], None] = print,
    **options: Any,
) -> DemoResult:
    """Generate the data, train, test and draw a picture; a demo that was stopped is resumed.

    Args:
        folder: the folder of the data, the run and the picture.
        source_language: de, en or zh.
        target_language: another of these.
        seed: seed of data and training.
        say: called with each line of output.
        **options: further arguments of `train`; settings of the run override those of the demo.

    Raises:
        ConfigurationError: the folder is a file, or holds something that is not a demo.
    """
    _check_folder(folder)
    pair = f"{source_language}-{target_language}"
    training, valid, test = split(source_language, target_language, train=TRAIN, valid=VALID, test=TEST, seed=seed)
    say(f"{pair}: {len(training):,} training examples out of {sum(possible_sources().values()):,} possible, such as")
    for example in {e.pattern: e for e in training[:200]}.values():
        say(f"  {example.pattern:<9} {example.source}  ->  {example.target}")
    files = {
        f"{name}_{side}" if name == "valid" else side: _write(folder / f"data-{pair}", name, side, language, examples)
        for name, examples in (("train", training), ("valid", valid))
        for side, language in (("source", source_language), ("target", target_language))
    }
    result = train(output=folder / f"run-{pair}", seed=seed, say=say, **{**SETTINGS, **files, **options})
    return _test(result.translator(), test, folder / f"attention-{pair}.png", target_language, say)


def _check_folder(folder: Path) -> None:
    """Check that the folder holds nothing but a demo, so that nothing else is overwritten."""
    work_folder.nearest_existing(folder)
    ours = ("data", "data-*", "run-*", "attention-*.png")  # data: of version 0.1
    # Hidden files are those of the system, such as .DS_Store, and drafts of a demo that was killed.
    seen = [path for path in folder.glob("*") if not path.name.startswith(".")]
    others = [path.name for path in seen if not any(path.match(name) for name in ours)]
    if others:
        raise ConfigurationError(
            f"{folder}: holds something that is not a demo ({min(others)}); nothing was touched. Choose a new folder"
        )


def _write(folder: Path, name: str, side: str, language: str, examples: list[Example]) -> Path:
    """Write one side of one set as a text file."""
    path = folder / f"{name}.{language}"
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    texts = [example.source if side == "source" else example.target for example in examples]
    write_text(path, "".join(text + "\n" for text in texts))
    return path


def _test(
    translator: Translator, test: list[Example], picture: Path, language: str, say: Callable[[str], None]
) -> DemoResult:
    """Translate the test set, count exactly right translations, and draw the attention of one."""
    found = translator.translate([example.source for example in test])
    right: Counter[str] = Counter()
    total = Counter(example.pattern for example in test)
    for example, text in zip(test, found, strict=True):
        right[example.pattern] += text == example.target
    say(f"exactly right, of {len(test):,} that were not in the training data:")
    for pattern, count in total.items():
        say(f"  {pattern:<9} {100 * right[pattern] / count:6.2f}%  of {count}")
    in_all = right.total() / len(test)
    scores = score(found, [example.target for example in test], language)
    say(f"  {'in all':<9} {100 * in_all:6.2f}%\n{scores}")
    say("some of them:")
    for example, text in list(zip(test, found, strict=True))[:8]:
        mark = "" if text == example.target else f"   (right: {example.target})"
        say(f"  {example.source}  ->  {text}{mark}")
    _draw(translator, next(e for e in test if e.pattern == "date"), picture)
    say(f"what the decoder looked at while it wrote one of them: {picture}")
    return DemoResult({p: right[p] / n for p, n in total.items()}, in_all, scores, picture)


def _draw(translator: Translator, example: Example, picture: Path) -> None:
    """Draw the cross-attention of the last layer, averaged over its heads."""
    seen = translator.attention(example.source)
    attention_map(
        seen.weights.cross[-1][0],
        seen.source,
        seen.target,
        picture,
        title=f"{example.source}",
    )
