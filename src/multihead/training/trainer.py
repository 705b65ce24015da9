"""The training loop: update, log, validate, keep the best, save. One screen, in `Trainer.run`.

The loop is a function of its state (`RunState`, weights, optimiser): stopped anywhere and started from the last
checkpoint it does what it would have done. How a model is judged is handed in as ``evaluate``; what is learned from,
as a `BatchStream`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from multihead.data.batching import Batch
from multihead.errors import Interrupted
from multihead.training.checkpoint import Checkpoint, RunState, Window, copy_into, load_newest, save
from multihead.training.config import TrainingConfig
from multihead.training.loss import Model
from multihead.training.optimizer import Average, build_optimizer, optimizer_tensors, restore_optimizer
from multihead.training.progress import RunLog, duration
from multihead.training.schedule import learning_rate
from multihead.training.step import StepSums, train_step


@dataclass(frozen=True)
class Validation:
    """What ``evaluate`` found."""

    score: float
    """What is to be as high as possible."""
    loss: float
    """What is to be as low as possible where scores are equal."""
    values: dict[str, Any]
    """For the log: loss, BLEU, chrF, their signatures."""
    summary: str
    """The same in a line for people."""


@dataclass(frozen=True)
class Surroundings(Generic[Model]):
    """What the loop is given besides the model and its settings."""

    take: Callable[[], Batch]
    """The next batch."""
    position: Callable[[], tuple[int, int]]
    """Where the next batch stands: epoch and place."""
    evaluate: Callable[[Model], Validation]
    """Judges a model on the validation set."""
    keep: Callable[[Model, dict[str, Any]], None]
    """Writes the best model so far, with its scores."""
    stop_signal: Callable[[], int | None]
    """The number of a signal that asks to stop, once there was one."""


class Trainer(Generic[Model]):
    """A run: the model, its optimiser and average, and where it stands.

    Args:
        model: what is trained, on its device.
        config: every decision.
        width: the model width, for the schedule.
        padding_id: what is not a token.
        folder: the run folder; checkpoints and logs go there.
        log: prints and records.
        checkpoint: where to go on; ``None`` begins.
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig,
        *,
        width: int,
        padding_id: int,
        folder: Path,
        log: RunLog,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.model, self.config, self.width, self.padding_id = model, config, width, padding_id
        self.checkpoints, self.log = folder / "checkpoints", log
        self.optimizer = build_optimizer(model, config)
        self.average: Average[Model] = Average(model, config.average)
        self.state = RunState()
        if checkpoint is not None:
            self._restore(checkpoint)
        self._window_started = self._started = time.monotonic()
        self._started_at = self.state.step

    @staticmethod
    def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
        """What a run in ``folder`` can go on from."""
        return load_newest(folder / "checkpoints", warn)

    def run(self, around: Surroundings[Model]) -> RunState:
        """Trains to the end, or until a signal: then saves and raises.

        Raises:
            Interrupted: a signal came; everything so far is in a checkpoint.
            DivergenceError: the loss is no longer finite.
        """
        state = self.state
        while not self.finished:
            if self._validation_due():
                self._validate(around)
                self._save()
            elif (number := around.stop_signal()) is not None:
                self._save()
                raise Interrupted(
                    number, f"stopped after update {self.state.step}; the same command goes on from there"
                )
            else:
                self._update([around.take() for _ in range(self.config.accumulate)], around.position())
                if self.state.step % self.config.log_every == 0:
                    self._report()
            state = self.state
        return state

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        patience, state = self.config.patience, self.state
        if patience and state.without_gain >= patience:
            return True
        return state.step >= self.config.updates and not self._validation_due()

    def _validation_due(self) -> bool:
        step = self.state.step
        at_end = step == self.config.updates
        return step > self.state.validated_at and (at_end or step % self.config.validate_every == 0)

    def _update(self, batches: list[Batch], position: tuple[int, int]) -> None:
        step = self.state.step + 1
        rate = learning_rate(self.config, step, self.width)
        on_device = [batch.to(self.config.device) for batch in batches]
        sums = train_step(self.model, self.optimizer, on_device, self.config, step, rate, self.padding_id)
        self.average.update(step)
        self._move(step=step, position=position, window=_add(self.state.window, sums))

    def _validate(self, around: Surroundings[Model]) -> None:
        """Judges the averaged weights and keeps them when they are the best so far.

        Better is a higher score; of equal ones (0 BLEU and 0 BLEU, at the beginning) the lower loss.
        """
        started = time.monotonic()
        self.average.model.eval()
        result = around.evaluate(self.average.model)
        state, seconds = self.state, time.monotonic() - started
        better = state.is_better(result.score, result.loss)
        if better:
            around.keep(self.average.model, {"step": state.step, **result.values})
            self._move(best_step=state.step, best_score=result.score, best_loss=result.loss, without_gain=0)
        else:
            self._move(without_gain=state.without_gain + 1)
        mark = "the best so far" if better else f"the best is still {state.best_score:.2f} at {state.best_step}"
        self.log.say(f"validation at {state.step}: {result.summary} ({mark})")
        self.log.record("validation", state.step, result.values, {"seconds": round(seconds, 3)})
        self._move(validated_at=state.step)
        self._window_started += time.monotonic() - started

    def _report(self) -> None:
        """A line of the log: means over the updates since the last one."""
        state, window, now = self.state, self.state.window, time.monotonic()
        values = {
            "epoch": state.position[0],
            "loss": window.loss / window.tokens,
            "perplexity": math.exp(min(window.nll / window.tokens, 100.0)),
            "accuracy": window.correct / window.tokens,
            "gradient_norm": window.gradient_norm / window.updates,
            "learning_rate": learning_rate(self.config, state.step, self.width),
            "target_tokens": window.tokens,
        }
        speed = window.tokens / max(now - self._window_started, 1e-9)
        rest = (now - self._started) / max(state.step - self._started_at, 1) * (self.config.updates - state.step)
        self.log.say(
            f"{state.step:>6}/{self.config.updates}  epoch {state.position[0] + 1}  loss {values['loss']:.3f}  "
            f"perplexity {values['perplexity']:.2f}  accuracy {100 * values['accuracy']:.1f}%  "
            f"{speed:,.0f} tokens/s  {duration(rest)} left"
        )
        self.log.record("train", state.step, values, {"tokens_per_second": round(speed, 1)})
        self._move(window=Window())
        self._window_started = now

    def _move(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)

    def _save(self) -> None:
        average = dict(self.average.model.named_parameters()) if self.config.average else {}
        optimizer = optimizer_tensors(self.model, self.optimizer)
        tensors = dict(self.model.named_parameters())
        save(
            self.checkpoints,
            Checkpoint(self.state, {**tensors}, {**average}, optimizer),
            self.config.keep_checkpoints,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.state = checkpoint.state
        copy_into(dict(self.model.named_parameters()), checkpoint.model)
        if self.config.average:
            copy_into(dict(self.average.model.named_parameters()), checkpoint.average)
        restore_optimizer(self.model, self.optimizer, checkpoint.optimizer)


def _add(window: Window, sums: StepSums) -> Window:
    return Window(
        updates=window.updates + 1,
        **{name: getattr(window, name) + value for name, value in sums._asdict().items()},
    )
