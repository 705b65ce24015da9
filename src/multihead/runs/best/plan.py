"""What a run in stages does, and how it divides its time.

Text of pairs (x, y) gives, in this order,

    both-ways                    one translator from x to y and from y to x, where it pays
    forward-1 ... forward-K      translators from x to y, with different seeds
    reverse-1 ... reverse-L      translators from y to x, which choose among candidates
    right-to-left                a translator from x to y that writes the last word first; it chooses, too
    student, student-2           the best forward models, trained on with all forward models as their teachers
    small                        a narrower model of half the size, with the same teachers
    best                         the best model, and how well each way to use the models translates

Text of several directions has all of them in each model. It is learned as it is by the first one, there are no reverse
models, and a model that has the opposite of a direction chooses among its own candidates.

Where there is a first model, all others begin as that one, which sees twice as many pairs as there are (Ding et al.
2021, "Improving neural machine translation by bidirectional training"; docs/lab-notes.md, "Both directions first", has
what that gains). With 5,000 to 150,000 pairs and the usual time there is none: models from scratch are better, alone
and together (docs/results.md, "An hour of models from nothing").

A student learns the mean of the teachers' predictions at each position, besides the text (word-level distillation,
Kim and Rush 2016, "Sequence-level knowledge distillation"; that a model can learn from an ensemble with itself is
Furlanello et al. 2018, "Born-again neural networks"). It begins with the weights of a teacher, so a fraction of a
training is enough for it. Two students that began as different teachers are a better ensemble than one with its
teachers (docs/lab-notes.md, "Two students"). Synthetic pairs of the training text gained a student nothing
(docs/lab-notes.md, "Students that begin as a teacher"). Teachers that all began as one model have little to teach a
student of their own size (docs/lab-notes.md, "Both directions first"), so there are students only where they began
alone. The small model starts from scratch, or, where no narrower network has half the size, with layers and
feed-forward units of the best one (`models.shrinking`).

Where few updates fit into the time, all models are narrow, and there is no small model. If there is no further text,
the students start from scratch, and each forward model has those before it as its teachers: with them it learns more
from as many updates (docs/lab-notes.md, "An hour of narrow models" and "Narrow models that teach the next ones").

Further text in the target language does bring something new. With such text the reverse models come first and translate
it, and forward models and the right-to-left one learn from these pairs as well (back-translation, Sennrich et al. 2016,
"Improving neural machine translation models with monolingual data"). There are two forward models then, which take as
much time as three: with more text, a longer training pays off. Students and the small model learn from the real pairs,
as many made ones at most, and what the forward models predict of them (docs/lab-notes.md, "Captions").

The time of a training is its share of what is left when it begins, so a stage that took longer than expected is paid
for by those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from multihead import work_folder
from multihead.configuration import MOST_UPDATES, Settings
from multihead.planning.choices import FEW_PAIRS, narrowings, relative_length
from multihead.planning.settings import AS_ASKED, Choices, TextFile

_TARGET = 0.985
"""Where in the budget the last stage is planned to end."""
_USUAL, _USUAL_UPDATES = 3600.0, 13_800
"""Seconds for 30,000 pairs if neither a budget nor updates are given, and the updates of a network of the usual size
that two cores of a Zen 5 processor make in them."""
_SHORT, _FEW_UPDATES = 20 * 60.0, 4_600
"""Seconds, and updates of one training in the whole time, below which further models would leave each too little: a
single training is better. A slow machine makes few updates in an hour (docs/lab-notes.md, "Few updates in an hour")."""
_MODELS, _MODELS_OF_MORE = 3, 2
"""Forward models, without and with further text; with it, each takes longer, so that all take the same time."""
_MOST_PAIRS = 2.0
"""Weight that the translation of further text has at most; it takes as long as it takes."""
USUAL_TAG = "<bt>"
"""The first word of a source that a reverse model made, unless a shorter one is free."""
_MANY = 20_000
"""Pairs from which on a short run has no use for further text: seen 11 times, 29,000 pairs learn as much without it
(docs/lab-notes.md, "Captions"). With fewer pairs it was not tried."""
FALLING_RATE = 2.0
"""The peak learning rate of models that begin as that of both ways, in relation to its constant rate."""
STUDENT_RATE, CAREFUL_RATE = 0.5, 0.125
"""A student's peak learning rate, in relation to that of its teachers; the second where theirs is Muon's for few
pairs (`planning.choices.is_fast`), so that matrices move as far as with the first and the usual rate."""
STUDENT_DROPOUT = 0.1
"""A student's dropout: the predictions of its teachers keep it from memorizing the text (docs/lab-notes.md, "Dropout
and epochs")."""
STUDENT_BPE_DROPOUT = 0.1
"""The second student's BPE-dropout, of the source: it reads each sentence in other subwords in each epoch, the first
one does not, and so they differ more (docs/lab-notes.md, "Two students")."""
SMALL_DROPOUT = 0.0
"""The small model's dropout: it has fewer parameters to memorize the text with (docs/lab-notes.md, "Models from nothing
for an hour")."""
_ONE_WAY = range(5_000, FEW_PAIRS)
"""Numbers of pairs with which models start from scratch: with its high rate, Muon learns more from one direction in the
same time (docs/lab-notes.md, "The rate of Muon"). It was not tried with smaller texts."""
_ONE_WAY_LENGTH = 1.5
"""So many times the usual seconds or updates at most: with longer trainings from scratch nothing was measured."""


class BestConfig(Settings):
    """Everything decided about a run in stages: its run.json."""

    sealed_since: ClassVar[int] = 1

    format_version: int = 1
    kind: Literal["best"] = "best"
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    budget: float | None = Field(gt=0, le=MOST_UPDATES)
    """Seconds of the whole run; ``None`` if each training makes ``updates`` updates."""
    updates: int | None = Field(ge=1, le=MOST_UPDATES)
    seed: int
    """Of the first training; each further one takes the next."""
    forward: int = Field(ge=1, le=8)
    """Forward models."""
    reverse: int = Field(ge=0, le=8)
    """Reverse models."""
    student: int = Field(default=1, ge=0, le=8)
    """Students, which follow several forward models; true and false, which older runs have, are 1 and 0."""
    small: bool = False
    """Whether a model of half the size follows; not in runs of version 0.6."""
    datastore: bool = False
    """Whether the best model remembers its text at the end; not in older runs."""
    right_to_left: bool = False
    """Whether a model that writes from right to left judges candidates; not in older runs."""
    narrow: dict[str, int] | None = None
    """The sizes of all models, which have about half of the parameters of the usual network, where few updates of that
    fit; not in older runs."""
    both_ways: bool = False
    """Whether a model of both directions, or of all, comes first; not in runs of version 0.6."""
    monolingual: TextFile | None = None
    """Further text in the target language."""
    left_out: bool = False
    """Whether there is no time for the further text."""
    tag: str = USUAL_TAG
    """The first word of a source that a reverse model made; it tells the forward models so."""
    pairs: int = 0
    """Pairs of the training text."""
    reasons: dict[str, str]
    """Why each choice was made."""

    @property
    def further(self) -> TextFile | None:
        """The further text, if there is time for it."""
        return None if self.left_out else self.monolingual

    @property
    def epoch_pairs(self) -> int:
        """Pairs of an epoch of the forward models: those of the text, and as many at most of the further text."""
        return self.pairs + (0 if self.further is None else min(self.further.lines, self.pairs))

    @property
    def fresh_students(self) -> bool:
        """Whether students start from scratch, not as the forward models, each of which learns from those before it."""
        return self.narrow is not None and self.further is None


@dataclass(frozen=True)
class Fitting:
    """What a measurement of the pace says of a single training.

    Attributes:
        updates: that fit into the time, of the network that it would have.
        narrow: the sizes of a narrower network (`models.shrinking.narrower`), if there is one.
    """

    updates: int
    narrow: dict[str, int] | None = None


def decide(
    choices: Choices,
    pairs: int,
    versions: dict[str, str],
    monolingual: TextFile | None = None,
    *,
    tag: str = USUAL_TAG,
    shared: bool = True,
    several: bool = False,
    measure: Callable[[float], Fitting] | None = None,
) -> BestConfig:
    """Decide the stages of a run.

    Args:
        choices: the user's settings; collects the reason of each decision.
        pairs: training pairs.
        versions: of what it is started with.
        monolingual: further text in the target language.
        tag: the first word of the sources that are made of it.
        shared: whether the languages have one vocabulary.
        several: whether the text has several directions; then there is no further text.
        measure: measures how many updates of one training fit into so many seconds; without it there are enough.
    """
    updates, relative = choices.requested("updates"), relative_length(pairs)
    usual = _USUAL * relative
    length = (usual, f"for {pairs:,} pairs") if updates is None else (None, "updates is given")
    if updates is not None:
        choices.reasons["updates"] = AS_ASKED
    budget = choices.take("budget", lambda: length)
    seed = choices.take("seed", lambda: (1, "any seed works"))
    short, of_usual_length, fitting, found = False, False, "", None
    if budget is not None:
        short, of_usual_length = budget < _SHORT, budget <= _ONE_WAY_LENGTH * usual
        if measure is not None and not short:
            found = measure(budget)
            short, fitting = found.updates < _FEW_UPDATES, f", that of {found.updates:,} updates"
            of_usual_length = of_usual_length or found.updates <= _ONE_WAY_LENGTH * _USUAL_UPDATES * relative
    choices.reasons["both_ways"] = "each direction helps the other" if shared else "the languages share no vocabulary"
    choices.reasons["forward"] = f"as many as the time allows{fitting}"
    if shared and of_usual_length and pairs in _ONE_WAY:
        choices.reasons["both_ways"], shared = "trainings from scratch learn more in this time", False
    both_ways, several_models = shared or several, not short
    choices.reasons["student"] = (
        "models with a common beginning have little to teach each other"
        if several_models and both_ways
        else "they learn from all forward models"
        if several_models
        else "no time for one"
    )
    choices.reasons["small"] = "half the size, for browsers and phones" if several_models else "no time for one"
    left_out = monolingual is not None and short and pairs >= _MANY
    makes_pairs = monolingual is not None and not left_out
    choices.reasons["reverse"] = "makes pairs" if makes_pairs else "no time for one" if short else "chooses candidates"
    if left_out:
        choices.reasons["left_out"] = "a training this short does not exhaust the text itself"
    remembers = several_models and not several and pairs < FEW_PAIRS
    choices.reasons["datastore"] = (
        "the best model remembers its text"
        if remembers
        else "no time for one"
        if short
        else "only for one direction and little text"
    )
    judged = several_models and not both_ways
    choices.reasons["right_to_left"] = (
        "chooses candidates, too" if judged else "no time for one" if short else "only for models from scratch"
    )
    if several:
        choices.reasons["both_ways"] = "a first model learns all directions"
        choices.reasons["reverse"] = "each model has all directions"
    config = BestConfig(
        versions=versions,
        asked=work_folder.given_settings(choices.settings),
        budget=budget,
        updates=updates,
        seed=seed,
        forward=1 if short else _MODELS_OF_MORE if makes_pairs else _MODELS,
        reverse=0 if several or (short and not makes_pairs) else 1,
        student=2 if several_models and not both_ways else 0,
        small=several_models,
        datastore=remembers,
        right_to_left=judged,
        both_ways=both_ways,
        monolingual=monolingual,
        left_out=left_out,
        tag=tag,
        pairs=pairs,
        reasons=choices.reasons,
    )
    narrow = None if both_ways or found is None else _narrow(choices, config, found)
    if narrow is None:
        return config
    return config.model_copy(update={"narrow": narrow, "small": False, "reasons": choices.reasons})


def _narrow(choices: Choices, config: BestConfig, found: Fitting) -> dict[str, int] | None:
    """The sizes of all models if narrower ones learn as much in the few updates of a share with weight 1."""
    weights = [stage.weight for stage in stages_of(config)]
    updates = round(found.updates / sum(weights))
    kind = choices.requested("model") or "transformer"
    if config.forward == 1 or found.narrow is None or not narrowings(choices, kind, config.epoch_pairs, updates):
        return None
    choices.reasons["narrow"] = (
        f"as good as the usual size, which would make {updates:,} updates in a share, and faster"
    )
    choices.reasons["small"] = "all have about half of the usual size"
    return found.narrow


@dataclass(frozen=True)
class Stage:
    """A part of a run in stages.

    Attributes:
        name: of its file or folder in the run.
        weight: its time, in relation to that of the others.
    """

    name: str
    weight: float


BOTH, FORWARD, REVERSE, STUDENT, SMALL, BEST = "both-ways", "forward-{}", "reverse-{}", "student", "small", "best"
DATASTORE, RIGHT_TO_LEFT = "datastore", "right-to-left"
TEXT, BOTH_TEXT, REVERSE_TEXT, BACKWARDS_TEXT, MORE_TEXT, STUDENT_TEXT = (
    "text",
    "text-both",
    "text-reverse",
    "text-right-to-left",
    "text-more",
    "text-students",
)
PAIRS, FEW_MADE = "pairs/monolingual.tsv", "pairs/students.tsv"


def students_of(config: BestConfig) -> list[str]:
    """The names of the students: at most one for each forward model, each of which one begins as."""
    count = min(config.student, config.forward) if config.forward > 1 else 0
    return [STUDENT if i == 0 else f"{STUDENT}-{i + 1}" for i in range(count)]


def stages_of(config: BestConfig) -> tuple[Stage, ...]:
    """The stages of a run, in order; a single forward model has nothing to teach itself."""
    both = [Stage(BOTH, 1.5 if config.forward > 1 else 0.8)] if config.both_ways else []
    longer = 1.0 if config.further is None or config.forward == 1 else _MODELS / config.forward
    forward = [Stage(FORWARD.format(i + 1), longer) for i in range(config.forward)]
    reverse = [Stage(REVERSE.format(i + 1), 0.5 if config.both_ways else 0.6) for i in range(config.reverse)]
    judge = [Stage(RIGHT_TO_LEFT, 0.6)] if config.right_to_left else []
    teaching = 0.7 if config.narrow is None else 1.0 if config.fresh_students else 0.5
    student = [Stage(name, teaching) for name in students_of(config)]
    small = [Stage(SMALL, 0.7)] if config.small else []
    several = bool(reverse or student or small)
    store = [Stage(DATASTORE, 0.06)] if config.datastore else []
    last = (*student, *small, *store, Stage(BEST, (0.25 if store else 0.12) if several else 0.02))
    if config.further is None:
        return (*both, *forward, *reverse, *judge, *last)
    translating = min(0.12 * config.further.lines / max(config.pairs, 1), _MOST_PAIRS)
    return (*both, *reverse, Stage(PAIRS, translating), Stage(MORE_TEXT, 0.02), *forward, *judge, *last)


def budget_of(stages: Sequence[Stage], index: int, total: float, spent: float) -> float:
    """Seconds for a stage: of the time left, the share of its weight among the stages that are left."""
    left = sum(stage.weight for stage in stages[index:])
    return max((_TARGET * total - spent) * stages[index].weight / left, 0.001)
