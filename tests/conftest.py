"""Shared fixtures: a small language of number words, a run trained on it, commands, a browser."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import processes
import pytest
import signatures
import torch

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from multihead.runs.translator.train import TrainResult

signatures.install()  # before anything of the package is imported

WORDS = dict(
    zip(
        ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"],
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
        strict=True,
    )
)

SLOWEST = (
    "test_benchmarks.py",
    "translator/test_train_workflow.py",
    "runs/best/test_best.py",
    "models/test_learning.py",
    "test_pages.py",
    "shards/test_ray_engine.py",
    "training/test_step.py",
    "page/test_page.py",
    "training/test_checkpoint_faults.py",
    "training/test_combinations.py",
    "cli/test_commands.py",
    "translator/test_recurrent_workflow.py",
    "bert/test_pretrain.py",
    "serving/test_hostile.py",
    "page/test_page_languages.py",
    "test_platforms.py",
    "examples/test_structured_attention.py",
    "inspection/test_plots.py",
    "cli/test_elastic.py",
    "serving/test_server_process.py",
    "test_mutants.py",
    "page/test_docs_page.py",
    "classifier/test_classify.py",
    "lines/test_translate_shards.py",
    "page/test_page_looks.py",
    "models/test_transformer_state.py",
    "translating/test_copying.py",
    "serving/test_translating.py",
    "preparing/test_teachers.py",
    "cli/test_crash.py",
)
"""The files that take longest. They run first, so that no worker finishes long after the others."""

WITH_A_BROWSER = (
    "tests/serving/page/",
    "tests/interop/formats/test_web.py",
)
"""Files that share one browser."""

WITH_TRANSFORMERS = (
    "tests/test_benchmarks.py",
    "tests/test_tutorials.py",
    "tests/interop/",
    "tests/models/bert/test_huggingface.py",
    "tests/models/decoder/test_llama.py",
)
"""Files that import `transformers` and share its models."""


MEMORY, ENOUGH = Path("/dev/shm"), 2 * 2**30
"""A file system in memory, and the free bytes that it needs: the files of all tests are half a gigabyte."""


def pytest_configure() -> None:
    """Put files of tests into memory, and give examples of Hypothesis as much time as they take.

    Tests that train write many small files, which takes a tenth of their time on a disk. A busy machine is no fault.
    """
    from hypothesis import settings

    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    settings.register_profile("without a deadline", deadline=None)
    settings.load_profile("without a deadline")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, one process runs all files that share a browser or models."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            found = (files[0] for files in (WITH_A_BROWSER, WITH_TRANSFORMERS) if nodeid.startswith(files))
            return next(found, str(super()._split_scope(nodeid)))

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the slowest files first."""
    last = len(SLOWEST)
    items.sort(key=lambda item: next((i for i, name in enumerate(SLOWEST) if str(item.path).endswith(name)), last))


def pytest_runtest_setup() -> None:
    """Begin to count the calls whose signatures are checked only now and then."""
    signatures.calls.clear()


def pytest_collection_finish() -> None:
    """Exclude the current objects from garbage collection, which servers and commands request; collect less often.

    With the default threshold of 700 objects, garbage collection takes 3% of the time of tests that train.
    """
    import hypothesis  # noqa: F401  # before the freeze: importing it searches the collector's objects

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Replace `os.fsync` by a check that the file is open: no test cuts the power."""

    def checked(descriptor: int) -> None:
        os.fstat(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_long_look_at_the_machine() -> Iterator[None]:
    """Make the measurement of the machine's peak, which every translator's run logs, take almost no time."""
    from multihead.training import progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_PEAK_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_look_for_faults() -> Iterator[Callable[..., None]]:
    """Disable the search for faults at the start of a run, a tenth of the time of tests that train.

    `look_for_faults` enables it.
    """
    from multihead.runs.translator import begin

    look = begin.log_quick_check
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "log_quick_check", lambda *_: None)
        yield look


@pytest.fixture
def look_for_faults(no_look_for_faults: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the search for faults at the start of a run."""
    from multihead.runs.translator import begin

    monkeypatch.setattr(begin, "log_quick_check", no_look_for_faults)


@pytest.fixture(scope="session", autouse=True)
def no_stacks_of_seeds() -> Iterator[None]:
    """Save 1 ms per `torch.manual_seed`, which formats the stack as text for each device type that is not in use."""
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            patch.setattr(device, "traceback", SimpleNamespace(format_stack=list), raising=False)
        yield


SETTINGS: dict[str, Any] = {
    "width": 32,
    "heads": 2,
    "inner": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "vocab_size": 320,
    "batch_tokens": 512,
    "learning_rate": 0.01,
    "warmup": 20,
    "average": 0.9,
    "precision": "float32",
    "threads": 1,
}
"""A network that trains at 30 updates per second or more, on one thread, so that other processes hardly matter."""


@dataclass(frozen=True)
class Numbers:
    """A corpus of number words on disk."""

    folder: Path
    settings: dict[str, Any]

    @staticmethod
    def pairs(count: int, seed: int) -> list[tuple[str, str]]:
        """Rows of one to six number words and their translations."""
        draw = random.Random(seed)
        rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 6))] for _ in range(count)]
        return [(" ".join(row), " ".join(WORDS[word] for word in row)) for row in rows]

    @staticmethod
    def write(folder: Path, name: str, pairs: list[tuple[str, str]]) -> dict[str, Path]:
        """``folder/name.de`` and ``.en``."""
        for side, code in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{name}.{code}").write_bytes(text.encode())
        return {"source": folder / f"{name}.de", "target": folder / f"{name}.en"}

    @property
    def train(self) -> dict[str, Path]:
        """600 pairs to train on, as arguments of `train`."""
        return {"source": self.folder / "train.de", "target": self.folder / "train.en"}

    @property
    def valid(self) -> dict[str, Path]:
        """8 pairs to validate on, as arguments of `train`."""
        return {"valid_source": self.folder / "valid.de", "valid_target": self.folder / "valid.en"}

    @property
    def test(self) -> dict[str, Path]:
        """20 pairs to test on."""
        return {"source": self.folder / "test.de", "target": self.folder / "test.en"}

    @staticmethod
    def learn(output: Path, **wishes: Any) -> TrainResult:
        """`multihead.train` without output, on one thread, as a command with ``--threads 1`` runs it."""
        from multihead import train

        threads = torch.get_num_threads()
        try:
            return train(output=output, **{"say": lambda _: None, "use_threads": torch.set_num_threads, **wishes})
        finally:
            torch.set_num_threads(threads)

    @staticmethod
    def contents(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, str]:
        """All files and folders below a folder, with the hashes of the files, to check that nothing changes."""
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            for path in sorted(folder.rglob("*"))
            if path.name not in without
        }

    @staticmethod
    def seal_again(folder: Path) -> None:
        """Write the manifest of a folder again after a change, as if the files had been saved that way."""
        from multihead.sealed import manifest_of

        listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        content = manifest_of(folder, among={name.split("/")[0] for name in listed})
        (folder / "manifest.json").write_bytes(content)

    @staticmethod
    def without_manifest(model: Path) -> Path:
        """Convert a model folder to version 5: without a manifest, and with the checks of that version."""
        (model / "manifest.json").unlink()
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        (model / "config.json").write_text(json.dumps({**config, "format_version": 5}), encoding="utf-8")
        return model

    @staticmethod
    def flags(settings: dict[str, Any]) -> list[str]:
        """Settings as command-line flags."""
        words: list[str] = []
        for name, value in settings.items():
            flag = name.replace("_", "-")
            words += (
                [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
            )
        return words


WithoutKernels = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def compiled() -> WithoutKernels:
    """A context without compiled kernels; skips the test if they cannot be built."""
    from multihead.kernels import native as native_module

    found = native_module.load_kernels()
    if found.library is None:
        pytest.skip(found.reason)

    @contextlib.contextmanager
    def without_kernels() -> Iterator[None]:
        before = dict(native_module._loaded)
        native_module._loaded["kernels"] = native_module.Native(None, "plain kernels: a test")
        try:
            yield
        finally:
            native_module._loaded.update(before)

    return without_kernels


@pytest.fixture(scope="session")
def without_checks() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context without signature checks, for long trainings; shorter ones check the same signatures."""
    return signatures.disabled


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run a test without signature checks, where other tests check the same signatures."""
    with signatures.disabled():
        yield


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages that a test logs; at the end, the root logger has its level again.

    pytest's own plugin for this, which is disabled in pyproject.toml, takes 1.6 ms in every test of the suite.
    """
    messages: list[str] = []
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    known = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    loggers, level = [root, *(logger for logger in known if not logger.propagate)], root.level
    for logger in loggers:
        logger.addHandler(handler)
    yield messages
    for logger in loggers:
        logger.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run on one thread, which is faster for the small matrices of tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Python programs with PyTorch and the package already imported (`processes.WarmPopen`)."""
    monkeypatch.setattr(subprocess, "Popen", processes.WarmPopen)


@pytest.fixture
def fewer_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use two halvings of the validation text, which are enough to test tuned weights."""
    from multihead.judging import tune

    monkeypatch.setattr(tune, "_SPLITS", 2)


@pytest.fixture
def fewer_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test significance with 1,000 trials instead of 10,000."""
    from multihead.metrics import significance

    assert significance.TRIALS == 10_000
    monkeypatch.setattr(significance, "TRIALS", 1_000)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A headless Chromium for all files of this process."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium or no chromedriver: .ci/run installs both")
        pytest.skip("there is no chromium or no chromedriver: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program
    for word in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage"),
        *("disable-background-networking", "disable-component-update", "disable-sync", "window-size=1200,900"),
        "host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """A headless Chromium; without one the test is skipped, except in CI, where it fails.

    It can connect to this machine only, and script errors of a page are in ``browser.get_log("browser")``. A test file
    starts with an empty page and no logged errors, and must undo everything that it emulates.
    """
    chromium.get_log("browser")
    yield chromium
    chromium.get("about:blank")


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first test process makes while the others wait for it; no test may change it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    from multihead.platforms import fcntl  # None on systems that run the tests in one process

    folder, draft = base / name, base / f"{name}.draft"
    with (base / f"{name}.lock").open("wb") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft.mkdir()
            make(draft)
            draft.rename(folder)
    return folder


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    def write(folder: Path) -> None:
        for seed, (name, count) in enumerate((("train", 600), ("valid", 8), ("test", 20))):
            Numbers.write(folder, name, Numbers.pairs(count, seed))

    return Numbers(made_once(tmp_path_factory, "numbers", write), SETTINGS)


@pytest.fixture(scope="session")
def trained(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that translates number words; tests copy it before changing it."""
    options = {"updates": 250, "validate_every": 125, "log_every": 50, "dropout": 0.0, "smoothing": 0.0}
    files = {**numbers.train, **numbers.valid}

    def train(folder: Path) -> None:
        with signatures.disabled():
            numbers.learn(folder / "run", **files, **{**numbers.settings, **options})

    made = made_once(tmp_path_factory, "trained", train)
    return Path(shutil.copytree(made / "run", tmp_path_factory.mktemp("trained") / "run"))


@pytest.fixture(scope="session")
def noisy(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model with noise in its weights: it has the same vocabulary and translates differently."""
    from multihead.bundle import save_bundle
    from multihead.translating.translator import Translator

    folder, bundle = tmp_path_factory.mktemp("noisy") / "model", Translator.load(trained).bundle
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    save_bundle(folder, bundle, {}, "made for a test")
    return folder


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CommandResult]]:
    """Run ``multihead`` in this process with the given standard input; process-wide settings are restored."""
    from multihead.cli import process
    from multihead.cli.main import main

    monkeypatch.setattr(process, "configure_malloc", lambda: None)
    for name in ("TOKENIZERS_PARALLELISM", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.setenv(name, os.environ.get(name, "256" if "CAPACITY" in name else "true"))
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK", "1"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()

    def run(*words: object, given: bytes = b"") -> CommandResult:
        written, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(io.BufferedWriter(written), encoding="utf-8")
        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given)), encoding="utf-8"))
            streams.setattr(sys, "stdout", out)
            streams.setattr(sys, "stderr", err)
            status = main([str(word) for word in words])
            out.flush()
        return CommandResult(status, written.getvalue(), err.getvalue())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_num_threads(threads)
