"""Drive a run of any kind: begin or resume it, train, report its end.

Each kind of run (`runs.translator`, `runs.bert`, `runs.classifier`, `runs.pointer`) is a `RunKind`: it says what is
decided, prepared, trained on, trained and judged. `execute` does everything else, in the same order for all:

    1. lock the folder, then read ``run.json`` or begin: check, prepare, decide, write ``run.json``
    2. require the device, set the threads, seed the random numbers
    3. build network, batches and judge, and train from the newest checkpoint to the end

Several processes can train one run (`training.parallel`). The first one locks the folder, decides, writes and reports;
the others receive its decisions in `RunKind.follow`.
"""

from __future__ import annotations

import contextlib
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from multihead import work_folder
from multihead.bundle import weights_digest
from multihead.configuration import Settings, memory_of, require_device
from multihead.data.order import Array
from multihead.errors import ConfigurationError, FormatError
from multihead.kernels.linear import library_for_this_processor
from multihead.kernels.native import load_kernels
from multihead.model_folder import differing_shapes, read_config
from multihead.planning.settings import BaseRunConfig, GivenModel
from multihead.platforms import processor
from multihead.sealed import find_folder
from multihead.skeletons import without_values
from multihead.training.budget import Pacer
from multihead.training.checkpoint import Checkpoint, RunState, save
from multihead.training.config import Combination, TrainingConfig
from multihead.training.context import RunContext, TrainerInputs, Validation
from multihead.training.progress import ModelFlops, RunLog, SilentLog
from multihead.training.splitting import Examples, Given, Model, Processes
from multihead.training.tensorboard import TensorBoard
from multihead.training.trainer import Trainer
from multihead.urls import absolute

Chosen = TypeVar("Chosen", bound=Settings)
Config = TypeVar("Config", bound=BaseRunConfig)
Data = TypeVar("Data")


@runtime_checkable
class BatchStream(Protocol):
    """An endless sequence of batches."""

    @property
    def position(self) -> tuple[int, int]:
        """Epoch of the next batch and its index in the epoch."""

    def take(self) -> Given:
        """The next batch, or what this process needs of it."""


@dataclass(frozen=True)
class BatchSource:
    """The batches of a run, and how messages name them."""

    stream: BatchStream
    source_lines: Callable[[Array], Mapping[str, list[int]]]
    """Maps indices of examples to the lines of each file that they come from."""
    largest: Callable[[], Sequence[Examples]] = tuple
    """The batches that need most memory, to be tried before the first update."""
    close: Callable[[], None] = lambda: None
    """Called when training has ended."""


class Judge(ABC, Generic[Model]):
    """Evaluates models on the validation set and saves the best one."""

    @abstractmethod
    def evaluate(self, model: Model) -> Validation:
        """The scores of a model."""

    def evaluate_part(self, model: Model, part: int) -> Validation:
        """The scores of a model on one in ``part`` examples, if fewer take less time; otherwise on all."""
        del part
        return self.evaluate(model)

    def rehearse(self, model: Model) -> float:
        """Do a small part of an evaluation; returns the estimated seconds of a whole one, or 0."""
        del model
        return 0.0

    @abstractmethod
    def save(self, model: Model, folder: Path, metrics: dict[str, Any]) -> None:
        """Write a model folder; called in a thread, with a copy of the model that does not change."""


class NewRun(ABC, Generic[Config, Data]):
    """A run that begins. Its constructor checks the settings and writes nothing."""

    @abstractmethod
    def prepare(self) -> Data:
        """Write what training reads into the run folder."""

    @abstractmethod
    def decide(self, data: Data) -> Config:
        """Choose every setting that the user left open."""

    def resumed(self) -> Sequence[str]:
        """Names in the run folder that a stopped `prepare` left, and with which it goes on."""
        return ()

    def first_checkpoint(self, config: Config) -> Checkpoint | None:
        """The checkpoint of update 0 of a run that starts from given weights."""
        del config
        return None

    @abstractmethod
    def report(self, config: Config, data: Data, log: RunLog) -> None:
        """Log what was decided and why."""


class RunKind(ABC, Generic[Chosen, Config, Data, Model]):
    """What a kind of run brings.

    Args:
        settings: the user's.
        folder: the run folder.
        context: how to report, and what stops the run.
    """

    config_class: type[Config]
    """What the run's ``run.json`` holds."""
    outcome: str
    """How the score of the best model is reported: ", gets {:.2f}% right and is in"."""

    def __init__(self, settings: Chosen, folder: Path, context: RunContext) -> None:
        self.settings, self.folder, self.context = settings, folder, context
        self.given = work_folder.given_settings(settings)

    def outcome_of(self, config: Config, score: float) -> str:  # noqa: ARG002 - a kind may have several scores
        """`outcome` with the score of the best model."""
        return self.outcome.format(score)

    @abstractmethod
    def begin(self) -> NewRun[Config, Data]:
        """Check the settings of a new run."""

    @abstractmethod
    def open(self, config: Config) -> Data:
        """Open what training reads, as it was prepared."""

    @abstractmethod
    def network(self, config: Config) -> Model:
        """A network with its first values, drawn from PyTorch's current generator, on its device."""

    @abstractmethod
    def batches(self, config: Config, data: Data, position: tuple[int, int]) -> BatchSource:
        """Training batches, starting at ``position`` (epoch and index in it)."""

    @abstractmethod
    def judge(self, config: Config, data: Data) -> Judge[Model]:
        """The judge of the models of this run."""

    def given_again(self, config: Config) -> dict[str, object]:
        """The given settings that must equal those with which a run to resume began."""
        del config
        return self.given

    def start_message(self, config: Config) -> str | None:
        """Logged when training begins with given weights."""
        del config
        return None

    def flops(self, config: Config, model: Model) -> ModelFlops | None:
        """The cost of a token and the speed of the machine, if they are to be logged."""
        del config, model
        return None

    def follow(self) -> tuple[Config, Data]:
        """Receive the decisions of the first process, in every other one."""
        config: Config = self.context.processes.broadcast(None)
        return config, self.open(config)


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    folder: Path
    updates: int
    best_step: int
    """The update after which the best model was validated."""
    best_score: float
    """The score by which the best model was chosen."""


Result = TypeVar("Result", bound=RunResult)


def execute(kind: RunKind[Chosen, Config, Data, Model], result: type[Result]) -> Result:
    """Begin a run, or resume the one in its folder, and train it to its end.

    Raises:
        InputError: the folder holds something else, or a run with other settings; nothing was overwritten.
        Interrupted: the run was asked to stop; the same call resumes it.
        PeerEnded: another process has ended; the same call resumes the run.
    """
    context, processes = kind.context, kind.context.processes
    with work_folder.locked(kind.folder) if processes.is_first else contextlib.nullcontext():
        config, data = _begin_or_resume(kind) if processes.is_first else kind.follow()
        require_device(config.training.device)
        processes.require_devices(config.training.device)
        context.use_threads(processes.threads_per_process(config.training.threads))
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(config.training.seed)
            state = _train(kind, config, data)
    assert state.best_score is not None
    return result(kind.folder, state.step, state.best_step, state.best_score)


def _begin_or_resume(kind: RunKind[Chosen, Config, Data, Model]) -> tuple[Config, Data]:
    work_folder.restore(kind.folder, kind.config_class, kind.context.say)
    config = work_folder.read(kind.folder, kind.config_class)
    if config is None:
        config, data = _begin(kind)
    else:
        work_folder.check_same_settings(kind.folder, kind.given_again(config), config.asked)
        work_folder.remove_leftovers(kind.folder)
        data = kind.open(config)
    kind.context.processes.broadcast(config)
    return config, data


def _begin(kind: RunKind[Chosen, Config, Data, Model]) -> tuple[Config, Data]:
    """Begin a run; if that fails, leave the folder as it was, or with what was prepared before a signal."""
    folder, new = kind.folder, kind.begin()
    with work_folder.preparing(folder, resumed=new.resumed(), kept=lambda: bool(new.resumed())):
        data = new.prepare()
        config = new.decide(data)
        build, processes = lambda: _described(kind, config), kind.context.processes
        combination, _ = combine(build, config.training, processes, kind.context.parallel)
        require_memory(build, config.training, combination, processes)
        checkpoint = new.first_checkpoint(config)
        if checkpoint is not None:
            save(folder / "checkpoints", checkpoint, keep=1)
        work_folder.write(folder, config)
    new.report(config, data, RunLog(folder, kind.context.say))
    return config, data


def _train(kind: RunKind[Chosen, Config, Data, Model], config: Config, data: Data) -> RunState:
    """Train from the newest checkpoint, if there is one, and report the outcome."""
    folder, processes = kind.folder, kind.context.processes
    log = RunLog(folder, kind.context.say) if processes.is_first else SilentLog(folder, kind.context.say)
    build = lambda: _described(kind, config)  # noqa: E731
    # The first process decides: GPUs of different sizes would suggest different combinations.
    combination, reason = processes.broadcast(combine(build, config.training, processes, kind.context.parallel))
    trainer_class: type[Trainer[Model]] = Trainer
    if combination == "sharded":
        from multihead.training.sharded_trainer import ShardedTrainer

        trainer_class = ShardedTrainer
    checkpoint = trainer_class.newest_checkpoint(folder, log.say, processes)
    if checkpoint is not None:
        _check_sizes(kind, config, checkpoint)
    require_memory(build, config.training, combination, processes)
    model = kind.network(config)
    processes.all_gather("built")  # a process that could not build it ends the others here, not while they wait for it
    if combination == "replicated":
        from multihead.training.replicated import Replicated

        processes = Replicated(processes, model)
    pacer = None
    if config.training.budget is not None and processes.is_first:
        pacer = Pacer(folder, config.training, log.say, kind.context.started)
    trainer = trainer_class(
        model,
        config.training,
        width=config.model.width,
        folder=folder,
        log=log,
        checkpoint=checkpoint,
        processes=processes,
        pacer=pacer,
    )
    resumed = checkpoint is not None
    del checkpoint  # its tensors are not needed any more
    _check_best(folder / "best", trainer, log)
    if trainer.finished:
        if processes.is_first:
            outcome = _outcome(kind, config, trainer.state)
            kind.context.say(f"this run is finished: {outcome}. For another one choose a new folder")
        return trainer.state
    log.rewind(trainer.state.logged)
    if config.training.tensorboard and processes.is_first:
        log.copy_to(TensorBoard(folder, after=trainer.state.logged))
    if resumed:
        _report_start(kind, config, trainer, log)
    if processes.size > 1:
        log_decisions({"parallel": reason}, {"parallel": combination}, log)
    _report_surroundings(trainer, computed_by(config.training.device, processes), log)
    batches = kind.batches(config, data, trainer.state.position)
    try:
        judge = kind.judge(config, data)
        state = trainer.run(_inputs(kind, batches, judge, kind.flops(config, model)))
    finally:
        batches.close()
    log.say(f"done: {_outcome(kind, config, state)}")
    return state


def _inputs(
    kind: RunKind[Chosen, Config, Data, Model], batches: BatchSource, judge: Judge[Model], flops: ModelFlops | None
) -> TrainerInputs[Model]:
    return TrainerInputs(
        next_batch=batches.stream.take,
        position=lambda: batches.stream.position,
        evaluate=judge.evaluate,
        save_best=lambda best, metrics: judge.save(best, kind.folder / "best", metrics),
        stop_signal=kind.context.stop_signal,
        source_lines=batches.source_lines,
        largest_batches=batches.largest,
        flops=flops,
        evaluate_part=judge.evaluate_part,
        rehearse=judge.rehearse,
    )


def _check_best(folder: Path, trainer: Trainer[Model], log: RunLog) -> None:
    """Verify the best model of a run that goes on; without one, the next validated model counts as the best.

    Raises:
        FormatError: it is damaged; or it is missing, and the run is finished.
    """
    processes, is_there = trainer.processes, True
    if processes.is_first and trainer.state.best_score is not None:  # the best may be the given model, of update 0
        found = find_folder(folder, "copy it again, or remove the folder: the next validated model takes its place")
        is_there = found is not None
        if found is not None:
            with found:
                read_config(found)
                found.verify_all()
    if processes.all_gather(is_there)[0]:
        return
    if trainer.finished:
        raise FormatError(f"{folder}: is missing, and the run is finished; copy it back")
    log.say(f"{folder} is missing: the next validated model counts as the best so far")
    trainer.forget_best()


def _described(kind: RunKind[Chosen, Config, Data, Model], config: Config) -> Model:
    """The network of a run without memory for its parameters, on PyTorch's current device ``meta``."""
    training = config.training.model_copy(update={"device": "meta"})
    return kind.network(config.model_copy(update={"training": training}))


def combine(
    build: Callable[[], Any], training: TrainingConfig, processes: Processes, asked: Combination | None
) -> tuple[Combination, str]:
    """How the processes combine gradients, and why; ``build`` builds the network.

    Raises:
        ConfigurationError: asked for is to divide what adapters train, or a recurrent network.
    """
    if training.lora and asked == "sharded":
        raise ConfigurationError(
            "--parallel sharded: this run trains adapters (--lora), too little to divide; choose sum or replicated"
        )
    if asked == "sharded":
        require_divisible(build)
    if processes.size == 1:
        return "sum", "one process"
    from multihead.training.parallel import choose_combination

    needed, _ = state_bytes(build, training)
    stays_whole = training.lora or _is_recurrent(build)  # what adapters train is too little to divide
    memory = None if stays_whole else memory_of(training.device)
    return choose_combination(asked, processes.size, training.device, needed, memory)


def require_divisible(build: Callable[[], Any]) -> None:
    """Check that processes can have a part of a network each.

    Raises:
        ConfigurationError: it is recurrent.
    """
    if _is_recurrent(build):
        raise ConfigurationError(
            "--parallel sharded: this network is recurrent, and weights are gathered for whole sequences, not for each "
            "step of a layer; choose sum or replicated"
        )


def _is_recurrent(build: Callable[[], Any]) -> bool:
    return any(isinstance(module, torch.nn.RNNBase) for module in without_values(build).modules())


def state_bytes(build: Callable[[], Any], training: TrainingConfig) -> tuple[int, int]:
    """The bytes of weights, their average, gradients and optimizer state; and the number of parameters."""
    weights = list(without_values(build).parameters())
    parameters = sum(weight.numel() for weight in weights)
    frozen = sum(weight.numel() for weight in weights if not weight.requires_grad)
    copies = 2 + (1 if training.optimizer == "muon" else 2) + (training.average > 0)
    return 4 * (copies * (parameters - frozen) + frozen), parameters


def require_memory(
    build: Callable[[], Any], training: TrainingConfig, combination: Combination, processes: Processes
) -> None:
    """Check that a device has the memory for weights, gradients and what the optimizer keeps.

    Args:
        build: builds the network.
        training: how it is trained.
        combination: how the processes combine gradients; they divide all of this if it is ``"sharded"``.
        processes: those that train.

    Raises:
        ConfigurationError: it has not; activations, which depend on the batch, come on top.
    """
    memory = memory_of(training.device)
    needed, parameters = state_bytes(build, training)
    needed //= processes.size if combination == "sharded" else 1
    if memory is not None and needed > memory:
        raise ConfigurationError(
            f"these settings need {needed / 2**30:,.0f} GB for a network of {parameters:,} parameters, its gradients "
            f"and the optimizer, and {training.device} has {memory / 2**30:,.0f} GB: lower width, inner, the layers or "
            "vocab_size"
        )


def _check_sizes(kind: RunKind[Chosen, Config, Data, Model], config: Config, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint is of the network that run.json describes, before that is built.

    Raises:
        FormatError: it is not.
    """
    problem = differing_shapes(
        config.model,
        lambda: _described(kind, config),
        {name: tensor.shape for name, tensor in checkpoint.model.items()},
    )
    if problem is not None:
        raise FormatError(
            f"{kind.folder / work_folder.RUN}: the checkpoint is not of the model that it describes ({problem}); go on "
            "with the version of multihead that it names, or start the run again in a new folder"
        )


def _report_start(
    kind: RunKind[Chosen, Config, Data, Model], config: Config, trainer: Trainer[Model], log: RunLog
) -> None:
    step = trainer.state.step
    start = kind.start_message(config) if step == 0 else None
    log.say(start or f"going on after update {step} of {trainer.updates}")
    now = installed_versions()
    if config.versions != now:
        log.say(f"  begun with {config.versions}, now {now}: the result may differ in its last digits")


def _report_surroundings(trainer: Trainer[Any], now: dict[str, str], log: RunLog) -> None:
    """Say if the last updates were computed by something else, and note what computes the next ones."""
    before = trainer.state.computed_by
    changed = [name for name in now if before and before.get(name) != now[name]]
    if changed and not (changed == ["processes"] and trainer.keeps_shares):
        parts = [f"{name}: {before.get(name, 'unknown')}, now {now[name]}" for name in changed]
        differ = "the weights may differ in their last digits from those of an uninterrupted run"
        log.say(f"  other {'; '.join(parts)}: {differ}")
    trainer.state = trainer.state.model_copy(update={"computed_by": now})


def computed_by(device: str, processes: Processes) -> dict[str, str]:
    """What the last digits of an update depend on, besides the versions."""
    if device.startswith("cuda"):
        instructions = torch.cuda.get_device_name()
    elif device == "mps":
        instructions = "MPS"
    else:
        special = {"avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"} & processor().features
        instructions = " ".join((torch.backends.cpu.get_cpu_capability(), *sorted(special)))
        instructions += f", products by {(library := library_for_this_processor())}"
        if library_for_this_processor(half=True) == "compiled" != library:
            instructions += " (compiled in bfloat16)"
        level = load_kernels().level
        instructions += f", kernels for {level}" if level else ""
    return {
        "processes": str(processes.size),
        "threads each": str(torch.get_num_threads()),
        "instructions": instructions,
    }


def _outcome(kind: RunKind[Chosen, Config, Data, Model], config: Config, state: RunState) -> str:
    best = f"the best model, of update {state.best_step}{kind.outcome_of(config, state.best_score or 0.0)}"
    return f"{state.step} updates; {best} {kind.folder / 'best'}"


def log_decisions(reasons: Mapping[str, str], values: Mapping[str, object], log: RunLog) -> None:
    """Log values with the reason of each, a line each."""
    for name, value in values.items():
        log.say(f"  {name:<14} {value}  ({reasons.get(name, 'the usual value')})")


def installed_versions() -> dict[str, str]:
    """The versions that a run depends on, and which kernels compute it.

    Compiled kernels differ from plain ones in the last digits.
    """
    return {
        "multihead": version("multihead"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernels": "plain" if load_kernels().library is None else "compiled",
    }


def given_model(folder: Path) -> GivenModel:
    """What run.json records of the model that a run starts from; it can be resumed from another directory."""
    return GivenModel(path=str(absolute(folder)), weights=weights_digest(folder))
