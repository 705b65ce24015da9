"""The training loop: update, log, validate, keep the best model, save.

The loop is a function of its state (`RunState`, weights, optimizer state): stopped anywhere and restarted from the last
checkpoint, it does what it would have done without the stop. Batches, and the function that scores a model, are passed
in as `TrainerInputs`. `training.step` decides which updates are rejected, `training.splitting` splits batches that do
not fit into memory, and `training.checkpoint` writes checkpoints while the loop goes on.

A run with a budget has a plan (`training.plan`), which `training.budget` decides anew from time to time.

Several processes run the same loop, each on its rows of every batch (`training.parallel`); only the first one writes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from multihead.errors import DivergenceError, Interrupted
from multihead.training.adam import Optimizer
from multihead.training.budget import Pacer
from multihead.training.checkpoint import Checkpoint, CheckpointWriter, LogWindow, RunState, copy_into, load_newest
from multihead.training.config import TrainingConfig
from multihead.training.context import TrainerInputs
from multihead.training.optimizer import Average, build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from multihead.training.parallel import PeerEnded
from multihead.training.plan import Decision, Plan, first_plan, follow, place, validation_due
from multihead.training.progress import ModelFlops, RunLog, format_duration, format_lines
from multihead.training.splitting import (
    SINGLE_PROCESS,
    Given,
    Model,
    Processes,
    can_probe_memory,
    retry_in_pieces,
    with_shares,
)
from multihead.training.step import (
    RejectedUpdateError,
    StepSums,
    all_finite,
    append_norm,
    append_skipped,
    check_same_update,
    norm_limit,
    too_many_skipped,
    train_step,
    try_batch,
)

T = TypeVar("T")


class Trainer(Generic[Model]):
    """A run: the model, its optimizer and average, and the state of the loop.

    Args:
        model: the model to train, on its device.
        config: settings of training.
        width: the model width, for the schedule.
        folder: the run folder, for checkpoints and logs.
        log: prints and records.
        checkpoint: the checkpoint to resume from; None starts a new run.
        processes: the processes that train this model; each of them has a `Trainer`.
        pacer: decides the plan of a run with a budget; the first process has one.
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
        pacer: Pacer | None = None,
    ) -> None:
        self.processes, self._pacer = processes, pacer
        self._clock = time.monotonic if pacer is None else pacer.clock
        self.model, self.config, self.width = model, config, width
        self.checkpoints, self.log = folder / "checkpoints", log
        self.optimizer: Optimizer
        self.average: Average[Model]
        self._prepare()
        self.state = RunState()
        if checkpoint is not None:
            self._restore(checkpoint)
        before, self.processes = self.state.shares, with_shares(self.processes, self.state.shares)
        self._set_state(shares=self.processes.shares)
        self.keeps_shares = self.state.shares == before
        """Whether batches are divided as they were before the run was resumed: then its updates are the same."""
        if config.budget is not None:
            self._set_plan(self.state.plan or first_plan(config))
        self._writer = CheckpointWriter(self.checkpoints, config.keep_checkpoints)
        self._best_model: Model | None = None
        self._window_started = self._started = self._clock()
        self._started_at, self._window_before = self.state.step, self.state.window

    def _prepare(self) -> None:
        """Make the optimizer and the moving average of the model."""
        self.optimizer = build_optimizer(self.model, self.config)
        self.average = Average(self.model, self.config.average, frozen=self.config.lora > 0)

    @staticmethod
    def newest_checkpoint(
        folder: Path, warn: Callable[[str], None], processes: Processes = SINGLE_PROCESS
    ) -> Checkpoint | None:
        """The checkpoint that a run in ``folder`` resumes from; the first process reads it and broadcasts it."""
        found = load_newest(folder / "checkpoints", warn) if processes.is_first else None
        state = processes.all_gather(None if found is None else found.state)[0]
        if state is None:
            return None
        parts = (None, None, None) if found is None else (found.model, found.average, found.optimizer)
        return Checkpoint(state, *map(processes.broadcast_tensors, parts))

    def forget_best(self) -> None:
        """Forget the best model, which is lost: the next validated one counts as the best so far."""
        self._set_state(best_step=0, best_score=None, best_loss=None, without_gain=0)

    def run(self, inputs: TrainerInputs[Model]) -> RunState:
        """Train to the end, or until a signal: then save and raise.

        Raises:
            Interrupted: a signal came; everything so far is in a checkpoint.
            DivergenceError: too many updates were rejected, or the weights are not finite.
            SurroundingsError: a checkpoint could not be written, or a single pair does not fit into memory.
            PeerEnded: another process has ended; a checkpoint has everything up to the last common update.
        """
        if self._pacer is not None:
            self._pacer.begin(self.state)
        with self._writer:
            try:
                self._loop(inputs)
            except PeerEnded as error:  # raised before an update is applied, so weights and state are consistent
                if not self.processes.is_first:
                    raise
                raise PeerEnded(f"{error} ({self._save_alone()})", error.exit_status) from error
        if self._pacer is not None:
            self._pacer.end(self.state)
        self.processes.all_gather("done")  # no process returns before the first one has written everything
        return self.state

    def _save_alone(self) -> str:
        """Save what all processes have done, without them; says where the run goes on."""
        self._save()
        self._finish_saving()
        return f"saved after update {self.state.step}; run the same command again to continue"

    def _loop(self, inputs: TrainerInputs[Model]) -> None:
        self._try_largest(inputs)
        while not self.finished:
            self._writer.check()
            if self.state.plan is not None and self.state.plan.check <= self.state.step < self.updates:
                self._decide_plan(inputs)
            elif self._validation_due():
                best = self._validate(inputs)
                self._save(lambda copied, best=best: self._save_best(copied, best, inputs))  # type: ignore[misc]
            else:
                # Before the processes meet: one that cannot read its batch ends the others there.
                batches = [inputs.next_batch() for _ in range(self.config.accumulate)]
                if (number := self._received_signal(inputs)) is not None:
                    self._save()
                    self._finish_saving()
                    raise Interrupted(
                        number, f"stopped after update {self.state.step}; run the same command again to continue"
                    )
                self._update(batches, inputs)
                if self.state.step % self.config.log_every == 0:
                    self._report(inputs.flops)

    def _received_signal(self, inputs: TrainerInputs[Model]) -> int | None:
        """The number of a signal that any process received; also checks that all processes made the same update."""
        last_norm = self.state.norms[-1] if self.state.norms else 0.0
        gathered = self.processes.all_gather((inputs.stop_signal(), last_norm))
        check_same_update(self.state.step, [norm for _, norm in gathered])
        return next((number for number, _ in gathered if number is not None), None)

    @property
    def finished(self) -> bool:
        """Whether all updates and validations are done, or patience has run out."""
        patience, state = self.config.patience, self.state
        if patience and state.without_gain >= patience:
            return True
        return state.step >= self.updates and not self._validation_due()

    @property
    def updates(self) -> int:
        """Updates of the whole run, as far as is known."""
        return self.config.updates if self.state.plan is None else self.state.plan.updates

    def _validation_due(self) -> bool:
        step = self.state.step
        if self.state.plan is not None:
            return validation_due(self.state.plan, step, self.state.validated_at)
        at_end = step == self.config.updates
        return step > self.state.validated_at and (at_end or step % self.config.validate_every == 0)

    def _decide_plan(self, inputs: TrainerInputs[Model]) -> None:
        """Decide the rest of a run with a budget; all processes receive the decision of the first one."""
        assert self.state.plan is not None
        decision: Decision | None = None
        with self._averaged() as model:
            if self._pacer is not None:
                model.eval()
                decision = self._pacer.decide(self.state, self._writer.seconds, lambda: inputs.rehearse(model))
        decision, before = self.processes.broadcast(decision), self.state.plan
        self._set_plan(follow(self.config, before, self.state.step, decision))
        if (decision.updates, decision.validate_every) != (before.updates, before.validate_every):
            self.log.record("plan", self.state.step, decision.model_dump(exclude={"check"}), {})
        due = self._agreed(self._pacer is not None and self._pacer.save_due())
        if due and not self._validation_due():  # a validation saves what it found together with this update
            self._save()

    def _set_plan(self, plan: Plan) -> None:
        self._set_state(plan=plan)
        self.average.decay = plan.average

    def _learning_rate(self, step: int) -> float:
        if self.state.plan is None:
            return learning_rate(self.config, step, self.width)
        level, virtual = place(self.config, self.state.plan, step)
        return level * learning_rate(self.config, virtual, self.width)

    def _update(self, batches: list[Given], inputs: TrainerInputs[Model]) -> None:
        """Make one update, or skip its batches if it is rejected."""
        step, position = self.state.step + 1, inputs.position()
        try:
            sums = self._step_in_pieces(batches, step, inputs)
        except RejectedUpdateError as rejected:
            self._set_state(step=step, position=position, skipped=append_skipped(self.state.skipped, step))
            self._skip(rejected, batches, inputs)
        else:
            self.average.update(step)
            norms = append_norm(self.state.norms, sums.gradient_norm)
            self._set_state(step=step, position=position, window=_add(self.state.window, sums), norms=norms)
        if self._pacer is not None:
            self._pacer.updated()

    def _step_in_pieces(self, batches: Sequence[Given], step: int, inputs: TrainerInputs[Model]) -> StepSums:
        """Make the update, with smaller and smaller pieces until they fit into memory."""
        rate, max_norm = self._learning_rate(step), norm_limit(self.config, self.state)
        on_device = [batch.to(self.config.device) for batch in batches]
        return self._fit_into_memory(
            lambda max_cells: train_step(
                *(self.model, self.optimizer, on_device, self.config, step, rate),
                max_norm=max_norm,
                max_cells=max_cells,
                processes=self.processes,
            ),
            on_device,
            inputs,
        )

    def _try_largest(self, inputs: TrainerInputs[Model]) -> None:
        """Run the largest batches forward and backward before the first update, to find the memory limit early."""
        if self.state.step == 0 and can_probe_memory(self.config.device):
            for batch in inputs.largest_batches():
                on_device = batch.to(self.config.device)
                self._fit_into_memory(
                    lambda max_cells: try_batch(self.model, on_device, self.config, max_cells, self.processes),  # noqa: B023
                    [on_device],
                    inputs,
                )
                self.optimizer.zero_grad(set_to_none=True)

    def _fit_into_memory(
        self, attempt: Callable[[int | None], T], batches: Sequence[Given], inputs: TrainerInputs[Model]
    ) -> T:
        """Call ``attempt`` with the memory limit known so far, and with lower ones until it succeeds.

        The new limit is the same in all processes, or their runs would differ after a restart: `Processes.attempt`
        makes all of them fail if one does, and `retry_in_pieces` computes it from the rows of all.
        """
        result, max_cells = retry_in_pieces(
            *(attempt, batches, self.state.room, lambda piece: format_lines(inputs.source_lines(piece.indices))),
            processes=self.processes,
        )
        if max_cells != self.state.room:
            self._set_state(room=max_cells)
            self.log.say(
                f"after update {self.state.step}: a batch did not fit into memory; from now on those of more than "
                f"{max_cells} tokens are taken in pieces"
            )
        return result

    def _skip(self, rejected: RejectedUpdateError, batches: list[Given], inputs: TrainerInputs[Model]) -> None:
        """Log the lines of a rejected update; end the run if skipping does not help.

        Raises:
            DivergenceError: the weights are not finite, or too many updates were rejected.
        """
        step = self.state.step
        lines = inputs.source_lines(np.concatenate([batches[part].indices for part in rejected.parts]))
        self.log.say(f"update {step} skipped: {rejected.reason}; its pairs: {format_lines(lines)}")
        numbers = {"loss": rejected.loss, "gradient_norm": rejected.norm}
        values = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self.log.record("skipped", step, {**values, "lines": dict(lines)}, {})
        if not self._weights_are_finite():
            raise self._diverged("weights are no longer finite numbers")
        if too_many_skipped(self.config, self.state):
            count = len(self.state.skipped)
            raise self._diverged(
                f"{rejected.reason}, and {count} of the last 100 were skipped (log.jsonl has the lines)"
            )

    def _weights_are_finite(self) -> bool:
        return all_finite(self.model.parameters())

    def _agreed(self, value: bool) -> bool:
        """What decides whether to save: only the first process does."""
        return value

    @contextmanager
    def _averaged(self) -> Iterator[Model]:
        """A model with the averaged weights."""
        yield self.average.model

    def _validate(self, inputs: TrainerInputs[Model]) -> dict[str, Any] | None:
        """Score the averaged weights; return the values to keep with them if they are the best so far."""
        with self._averaged() as model:
            best = self._judge(model, inputs)
            if best is not None and self._best_model is None and self.processes.is_first:
                self._best_model = copy.deepcopy(model)
            return best

    def _judge(self, model: Model, inputs: TrainerInputs[Model]) -> dict[str, Any] | None:
        """A higher score is better; between equal scores (0 BLEU at the beginning) the lower loss."""
        started = self._clock()
        model.eval()
        part = 1 if self.state.plan is None else self.state.plan.part
        if part > 1 and inputs.evaluate_part is not None:
            result = inputs.evaluate_part(model, part)
        else:
            result = inputs.evaluate(model)
        if not (math.isfinite(result.loss) and math.isfinite(result.score)):
            raise self._diverged(f"the loss of the validation set is {result.loss:.4g}, its score {result.score:.4g}")
        state, seconds = self.state, self._clock() - started
        better = state.is_better(result.score, result.loss)
        if better:
            self._set_state(best_step=state.step, best_score=result.score, best_loss=result.loss, without_gain=0)
        else:
            self._set_state(without_gain=state.without_gain + 1)
        best = abs(state.best_score or 0.0)  # a loss is a negative score
        mark = "the best so far" if better else f"the best is still {best:.2f} at {state.best_step}"
        self.log.say(f"validation at {state.step}: {result.summary} ({mark})")
        self.log.record("validation", state.step, result.values, {"seconds": round(seconds, 3)})
        self._set_state(validated_at=state.step)
        self._window_started += self._clock() - started  # the log's tokens per second exclude validations
        if self._pacer is not None:
            self._pacer.validated(self._clock() - started)
        return {"step": state.step, **result.values} if better else None

    def _save_best(self, copied: Checkpoint, best: dict[str, Any] | None, inputs: TrainerInputs[Model]) -> None:
        """Pass on the best model, made of the checkpoint's copy: training changes the weights meanwhile."""
        if best is not None and self._best_model is not None:
            weights = {**copied.model, **copied.average}  # frozen weights have no average
            for name, parameter in self._best_model.named_parameters():
                parameter.data = weights[name]
            inputs.save_best(self._best_model, best)

    def _report(self, flops: ModelFlops | None) -> None:
        """Log means over the updates since the last line; nothing if all of them were skipped."""
        state, window, now = self.state, self.state.window, self._clock()
        before, started = self._window_before, self._window_started
        self._window_before, self._window_started = LogWindow(), now
        if not window.updates:
            return
        values = {
            "epoch": state.position[0],
            "loss": window.loss / window.tokens,
            "perplexity": math.exp(min(window.nll / window.tokens, 100.0)),
            "accuracy": window.correct / window.tokens,
            "gradient_norm": window.gradient_norm / window.updates,
            "learning_rate": self._learning_rate(state.step),
            "target_tokens": window.tokens,
        }
        if self.config.teacher_weight:
            values["teacher_loss"] = window.soft / window.tokens
        if self.config.alignment_weight:
            values["alignment_loss"] = window.guided / window.tokens
        # After a restart the window holds sums from before it; their time is not known here.
        seconds = max(now - started, 1e-9)
        source, target = window.source_tokens - before.source_tokens, window.tokens - before.tokens
        timing = {"tokens_per_second": round(target / seconds, 1)}
        if flops is not None:
            timing["share_of_peak"] = round(flops.utilization(source, target, seconds), 4)
        seconds_per_update = (now - self._started) / max(state.step - self._started_at, 1)
        remaining = seconds_per_update * (self.updates - state.step) if self._pacer is None else self._pacer.left
        taught = f" (teachers {values['teacher_loss']:.3f})" if "teacher_loss" in values else ""
        taught += f" (alignments {values['alignment_loss']:.3f})" if "alignment_loss" in values else ""
        share = f" ({100 * timing['share_of_peak']:.0f}% of peak)" if "share_of_peak" in timing else ""
        self.log.say(
            f"{state.step:>6}/{self.updates}  epoch {state.position[0] + 1}  loss {values['loss']:.3f}{taught}  "
            f"perplexity {values['perplexity']:.2f}  accuracy {100 * values['accuracy']:.1f}%  "
            f"{target / seconds:,.0f} tokens/s{share}  {format_duration(remaining)} left"
        )
        self.log.record("train", state.step, values, timing)
        self._set_state(window=LogWindow())

    def _diverged(self, what: str) -> DivergenceError:
        return DivergenceError(
            f"update {self.state.step}: {what}. Try a lower learning rate than {self.config.learning_rate:g} or a "
            f"longer warm-up than {self.config.warmup}; the checkpoints so far are kept"
        )

    def _set_state(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)

    def _save(self, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        """Start writing a checkpoint; ``before`` is called with its copy (`CheckpointWriter.save`)."""
        if not self._weights_are_finite():
            raise self._diverged("weights are no longer finite numbers")
        if not self.processes.is_first:
            return
        optimizer = optimizer_tensors(self.model, self.optimizer)
        tensors, started = dict(self.model.named_parameters()), self._clock()
        if self._pacer is not None:
            self._pacer.note(self.state.step)
        self._writer.save(Checkpoint(self.state, {**tensors}, self.average.tensors(), optimizer), before)
        if self._pacer is not None:
            self._pacer.saved(self._clock() - started)

    def _finish_saving(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.state = checkpoint.state
        copy_into(dict(self.model.named_parameters()), checkpoint.model)
        copy_into(self.average.tensors(), checkpoint.average)
        restore_optimizer(self.model, self.optimizer, checkpoint.optimizer)


def _add(window: LogWindow, sums: StepSums) -> LogWindow:
    return LogWindow(
        updates=window.updates + 1,
        **{name: getattr(window, name) + value for name, value in sums._asdict().items()},
    )
