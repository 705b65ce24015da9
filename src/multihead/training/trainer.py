"""The training loop: update, log, validate, keep the best, save. One screen, in `Trainer.run`.

The loop is a function of its state (`RunState`, weights, optimiser): stopped anywhere and started from the last
checkpoint it does what it would have done. How a model is judged is handed in as ``evaluate``; what is learned from,
batch by batch. Which updates are refused is for `training.step` to say, what happens to batches that do not fit
for `training.loss`, and how a checkpoint gets to the disk while the loop goes on for `training.checkpoint`.

Several processes run the same loop, each its share of every batch (`training.parallel`); the first one alone writes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from multihead.data.order import Array
from multihead.errors import DivergenceError, Interrupted
from multihead.training import loss as memory
from multihead.training import step as guard
from multihead.training.checkpoint import Checkpoint, CheckpointWriter, LogWindow, RunState, copy_into, load_newest
from multihead.training.config import TrainingConfig
from multihead.training.loss import Examples, Model
from multihead.training.optimizer import Average, build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from multihead.training.parallel import SINGLE_PROCESS, PeerEnded, Processes, check_same_update
from multihead.training.progress import ModelFlops, RunLog, format_duration, format_lines
from multihead.training.step import RejectedUpdateError, StepSums, train_step, try_batch

T = TypeVar("T")


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


def _by_number(pairs: Array) -> dict[str, list[int]]:
    """Pairs of which nothing is known but their place in the store, counted from 0."""
    return {"the store": sorted(pairs.tolist())}


@dataclass(frozen=True)
class TrainerInputs(Generic[Model]):
    """What the loop is given besides the model and its settings."""

    next_batch: Callable[[], Examples]
    """The next batch."""
    position: Callable[[], tuple[int, int]]
    """Where the next batch stands: epoch and place."""
    evaluate: Callable[[Model], Validation]
    """Judges a model on the validation set."""
    save_best: Callable[[Model, dict[str, Any]], None]
    """Writes the best model so far, with its scores; called in a thread, with a copy that nobody changes meanwhile."""
    stop_signal: Callable[[], int | None]
    """The number of a signal that asks to stop, once there was one."""
    source_lines: Callable[[Array], Mapping[str, list[int]]] = _by_number
    """Where pairs of the store come from: the lines of each file, or whatever names them."""
    largest_batches: Callable[[], Sequence[Examples]] = tuple
    """The batches that need most memory, to be tried before the first update."""
    flops: ModelFlops | None = None
    """How many operations a token takes, and how many the machine could do."""


class Trainer(Generic[Model]):
    """A run: the model, its optimiser and average, and where it stands.

    Args:
        model: what is trained, on its device.
        config: every decision.
        width: the model width, for the schedule.
        folder: the run folder; checkpoints and logs go there.
        log: prints and records.
        checkpoint: where to go on; ``None`` begins.
        processes: those that train this model together; each of them has a `Trainer`.
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig,
        *,
        width: int,
        folder: Path,
        log: RunLog,
        checkpoint: Checkpoint | None,
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        self.processes = processes
        self.model, self.config, self.width = model, config, width
        self.checkpoints, self.log = folder / "checkpoints", log
        self.optimizer = build_optimizer(model, config)
        self.average: Average[Model] = Average(model, config.average)
        self.state = RunState()
        if checkpoint is not None:
            self._restore(checkpoint)
        self._saver = CheckpointWriter(self.checkpoints, config.keep_checkpoints)
        self._shadow: Model | None = None
        self._window_started = self._started = time.monotonic()
        self._started_at, self._seen_before = self.state.step, self.state.window

    @staticmethod
    def newest_checkpoint(
        folder: Path, warn: Callable[[str], None], processes: Processes = SINGLE_PROCESS
    ) -> Checkpoint | None:
        """What a run in ``folder`` can go on from: read by the first process, for all."""
        found = load_newest(folder / "checkpoints", warn) if processes.is_first else None
        state = processes.all_gather(None if found is None else found.state)[0]
        if state is None:
            return None
        parts = (None, None, None) if found is None else (found.model, found.average, found.optimizer)
        return Checkpoint(state, *map(processes.broadcast_tensors, parts))

    def run(self, inputs: TrainerInputs[Model]) -> RunState:
        """Trains to the end, or until a signal: then saves and raises.

        Raises:
            Interrupted: a signal came; everything so far is in a checkpoint.
            DivergenceError: too many updates were refused, or the weights are no finite numbers.
            SurroundingsError: a checkpoint could not be written, or a single pair does not fit into memory.
            PeerEnded: another process has ended; everything up to the last update that all made is in a checkpoint.
        """
        with self._saver:
            try:
                self._loop(inputs)
            except PeerEnded as error:  # an update is made when all have done their part: the weights are a whole one's
                if not self.processes.is_first:
                    raise
                self._save()
                self._saver.wait()
                saved = f"saved after update {self.state.step}; the same command goes on from there"
                raise PeerEnded(f"{error} ({saved})", error.exit_status) from error
        self.processes.all_gather("done")  # nobody is told that it is before everything is on the disk
        return self.state

    def _loop(self, inputs: TrainerInputs[Model]) -> None:
        self._try_largest(inputs)
        while not self.finished:
            self._saver.check()
            if self._validation_due():
                best = self._validate(inputs)
                self._save(lambda copied, best=best: self._keep(copied, best, inputs))  # type: ignore[misc]
            elif (number := self._signalled(inputs)) is not None:
                self._save()
                self._saver.wait()
                raise Interrupted(
                    number, f"stopped after update {self.state.step}; the same command goes on from there"
                )
            else:
                self._update([inputs.next_batch() for _ in range(self.config.accumulate)], inputs)
                if self.state.step % self.config.log_every == 0:
                    self._report(inputs.flops)

    def _signalled(self, inputs: TrainerInputs[Model]) -> int | None:
        """The number of a signal that any process was given; a look at whether all are at the same place, too."""
        last = self.state.norms[-1] if self.state.norms else 0.0
        told = self.processes.all_gather((inputs.stop_signal(), last))
        check_same_update(self.state.step, [norm for _, norm in told])
        return next((number for number, _ in told if number is not None), None)

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

    def _update(self, batches: list[Examples], inputs: TrainerInputs[Model]) -> None:
        step, position = self.state.step + 1, inputs.position()
        try:
            sums = self._in_memory(batches, step, inputs)
        except RejectedUpdateError as refused:
            self._move(step=step, position=position, skipped=guard.append_skipped(self.state.skipped, step))
            self._skip(refused, batches, inputs)
        else:
            self.average.update(step)
            norms = guard.append_norm(self.state.norms, sums.gradient_norm)
            self._move(step=step, position=position, window=_add(self.state.window, sums), norms=norms)

    def _in_memory(self, batches: Sequence[Examples], step: int, inputs: TrainerInputs[Model]) -> StepSums:
        """The update, of smaller and smaller pieces until they fit into memory."""
        rate, norm_limit = learning_rate(self.config, step, self.width), guard.norm_limit(self.config, self.state)
        ready = [batch.to(self.config.device) for batch in batches]
        return self._with_room(
            lambda room: train_step(
                *(self.model, self.optimizer, ready, self.config, step, rate),
                norm_limit=norm_limit,
                room=room,
                processes=self.processes,
            ),
            ready,
            inputs,
        )

    def _try_largest(self, inputs: TrainerInputs[Model]) -> None:
        """Runs the largest batches forwards and backwards before the first update: so what does not fit is known."""
        if self.state.step == 0 and memory.can_probe_memory(self.config.device):
            for batch in inputs.largest_batches():
                ready = batch.to(self.config.device)
                self._with_room(
                    lambda room: try_batch(self.model, ready, self.config, room, self.processes),  # noqa: B023
                    [ready],
                    inputs,
                )
                self.optimizer.zero_grad(set_to_none=True)

    def _with_room(
        self, attempt: Callable[[int | None], T], batches: Sequence[Examples], inputs: TrainerInputs[Model]
    ) -> T:
        parts = [part for batch in batches for part in self.processes.split_rows(batch)]
        found, room = memory.retry_in_pieces(
            attempt, parts, self.state.room, lambda part: format_lines(inputs.source_lines(part.indices))
        )
        if room != self.state.room:
            self._move(room=room)
            self.log.say(
                f"after update {self.state.step}: a batch did not fit into memory; from now on those of more than "
                f"{room} tokens are taken in pieces"
            )
        return found

    def _skip(self, refused: RejectedUpdateError, batches: list[Examples], inputs: TrainerInputs[Model]) -> None:
        """Says which lines a refused update was made of; ends the run where others would not help.

        Raises:
            DivergenceError: the weights are no finite numbers, or too many updates were refused.
        """
        step = self.state.step
        places = inputs.source_lines(np.concatenate([batches[part].indices for part in refused.parts]))
        self.log.say(f"update {step} skipped: {refused.reason}; its pairs: {format_lines(places)}")
        found = {"loss": refused.loss, "gradient_norm": refused.norm}
        values = {name: value if math.isfinite(value) else None for name, value in found.items()}
        self.log.record("skipped", step, {**values, "lines": dict(places)}, {})
        if not guard.all_finite(self.model.parameters()):
            raise self._diverged("weights are no longer finite numbers")
        if guard.too_many_skipped(self.config, self.state):
            count = len(self.state.skipped)
            raise self._diverged(
                f"{refused.reason}, and {count} of the last 100 were skipped (log.jsonl has the lines)"
            )

    def _validate(self, inputs: TrainerInputs[Model]) -> dict[str, Any] | None:
        """Judges the averaged weights; what is to be kept with them where they are the best so far.

        Better is a higher score; of equal ones (0 BLEU and 0 BLEU, at the beginning) the lower loss.
        """
        started = time.monotonic()
        self.average.model.eval()
        result = inputs.evaluate(self.average.model)
        if not (math.isfinite(result.loss) and math.isfinite(result.score)):
            raise self._diverged(f"the loss of the validation set is {result.loss:.4g}, its score {result.score:.4g}")
        state, seconds = self.state, time.monotonic() - started
        better = state.is_better(result.score, result.loss)
        if better:
            if self._shadow is None and self.processes.is_first:
                self._shadow = copy.deepcopy(self.average.model)
            self._move(best_step=state.step, best_score=result.score, best_loss=result.loss, without_gain=0)
        else:
            self._move(without_gain=state.without_gain + 1)
        mark = "the best so far" if better else f"the best is still {state.best_score:.2f} at {state.best_step}"
        self.log.say(f"validation at {state.step}: {result.summary} ({mark})")
        self.log.record("validation", state.step, result.values, {"seconds": round(seconds, 3)})
        self._move(validated_at=state.step)
        self._window_started += time.monotonic() - started
        return {"step": state.step, **result.values} if better else None

    def _keep(self, copied: Checkpoint, best: dict[str, Any] | None, inputs: TrainerInputs[Model]) -> None:
        """Hands the best model so far on, made of the copy: training goes on with the weights meanwhile."""
        if best is not None and self._shadow is not None:
            for name, parameter in self._shadow.named_parameters():
                parameter.data = (copied.average or copied.model)[name]
            inputs.save_best(self._shadow, best)

    def _report(self, flops: ModelFlops | None) -> None:
        """A line of the log: means over the updates since the last one; none where all of them were skipped."""
        state, window, now = self.state, self.state.window, time.monotonic()
        before, started = self._seen_before, self._window_started
        self._seen_before, self._window_started = LogWindow(), now
        if not window.updates:
            return
        values = {
            "epoch": state.position[0],
            "loss": window.loss / window.tokens,
            "perplexity": math.exp(min(window.nll / window.tokens, 100.0)),
            "accuracy": window.correct / window.tokens,
            "gradient_norm": window.gradient_norm / window.updates,
            "learning_rate": learning_rate(self.config, state.step, self.width),
            "target_tokens": window.tokens,
        }
        seconds = max(now - started, 1e-9)
        source, target = window.source_tokens - before.source_tokens, window.tokens - before.tokens
        timing = {"tokens_per_second": round(target / seconds, 1)}
        if flops is not None:
            timing["share_of_peak"] = round(flops.utilization(source, target, seconds), 4)
        rest = (now - self._started) / max(state.step - self._started_at, 1) * (self.config.updates - state.step)
        share = f" ({100 * timing['share_of_peak']:.0f}% of peak)" if "share_of_peak" in timing else ""
        self.log.say(
            f"{state.step:>6}/{self.config.updates}  epoch {state.position[0] + 1}  loss {values['loss']:.3f}  "
            f"perplexity {values['perplexity']:.2f}  accuracy {100 * values['accuracy']:.1f}%  "
            f"{target / seconds:,.0f} tokens/s{share}  {format_duration(rest)} left"
        )
        self.log.record("train", state.step, values, timing)
        self._move(window=LogWindow())

    def _diverged(self, what: str) -> DivergenceError:
        return DivergenceError(
            f"update {self.state.step}: {what}. Try a lower learning rate than {self.config.learning_rate:g} or a "
            f"longer warm-up than {self.config.warmup}; the checkpoints so far are kept"
        )

    def _move(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)

    def _save(self, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        if not guard.all_finite(self.model.parameters()):
            raise self._diverged("weights are no longer finite numbers")
        if not self.processes.is_first:
            return
        average = dict(self.average.model.named_parameters()) if self.config.average else {}
        optimizer = optimizer_tensors(self.model, self.optimizer)
        tensors = dict(self.model.named_parameters())
        self._saver.save(Checkpoint(self.state, {**tensors}, {**average}, optimizer), before)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.state = checkpoint.state
        copy_into(dict(self.model.named_parameters()), checkpoint.model)
        if self.config.average:
            copy_into(dict(self.average.model.named_parameters()), checkpoint.average)
        restore_optimizer(self.model, self.optimizer, checkpoint.optimizer)


def _add(window: LogWindow, sums: StepSums) -> LogWindow:
    return LogWindow(
        updates=window.updates + 1,
        **{name: getattr(window, name) + value for name, value in sums._asdict().items()},
    )
