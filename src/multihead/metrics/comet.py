"""COMET: a learned score of sources, translations and references

    COMET = mean over sentences of f(source, translation, reference)

f is a network trained on people's judgements (Rei et al. 2020, "COMET: a neural framework for MT evaluation"; 2022,
"COMET-22", the default). Its library is unbabel-comet, which needs older NumPy and transformers than this package has,
so that both cannot be in one environment. `Comet` runs the library in an environment of its own, as a process
(`metrics.comet_program`) that loads the model once and scores until it is closed.

That environment is the one of the command ``comet-score`` on the PATH, which ``pipx install unbabel-comet`` makes, or
that of the Python that the environment variable MULTIHEAD_COMET names.

`CometMetric` makes the scores a metric of sacreBLEU, whose intervals and tests are then those of BLEU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sacrebleu.metrics.base import Metric, Score, Signature

from multihead.errors import ConfigurationError, InputError, SurroundingsError, shortened
from multihead.metrics import comet_program
from multihead.metrics.scores import check_lines

DEFAULT = "Unbabel/wmt22-comet-da"
"""The model that is used where none is named."""
VARIABLE = "MULTIHEAD_COMET"

_INSTALL = f"pipx install unbabel-comet; or set {VARIABLE} to the Python of an environment that has it"
_OLD_SETUPTOOLS = 'pipx inject --force unbabel-comet "setuptools<81"'
"""COMET 2.2.7 and what it needs import pkg_resources, which later versions of setuptools do not have."""
_PATIENCE = 5.0
"""Seconds until a process whose input has ended is killed."""


def find_python() -> str:
    """The Python of the environment in which COMET is installed.

    Raises:
        SurroundingsError: there is none.
    """
    given = os.environ.get(VARIABLE)
    if given:
        found = shutil.which(given)
        if found is None:
            raise SurroundingsError(f"{VARIABLE}: expected the Python of an environment with COMET, got {given!r}")
        return found
    script = shutil.which("comet-score")
    if script is None:
        raise SurroundingsError(f"COMET is not installed, there is no comet-score on the PATH: {_INSTALL}")
    python = _interpreter(Path(script))
    if python is None:
        raise SurroundingsError(f"{script}: does not name its Python; set {VARIABLE} to it")
    return python


def _interpreter(script: Path) -> str | None:
    """The Python that a script of pip names in its first lines, or that lies beside it."""
    with script.open("rb") as file:
        head = file.read(1024).decode("utf-8", "replace").splitlines()
    found = head[0][2:].strip() if head and head[0].startswith("#!") else ""
    if found.endswith("/sh") and len(head) > 1:  # what pip writes for long paths: '''exec' "/path/python" "$0" "$@"
        words = shlex.split(head[1].replace("'''exec'", "", 1))
        found = words[0] if words else ""
    beside = [script.resolve().with_name(name) for name in ("python", "python.exe")]
    named = [found, *map(str, beside)]
    return next((name for name in named if "python" in Path(name).name and Path(name).is_file()), None)


def checkpoint(model: str) -> str:
    """The checkpoint file of a model: the file itself, that of a downloaded folder, or a name as it is.

    Raises:
        ConfigurationError: it is a path, and there is no such file.
    """
    path = Path(model).expanduser()
    for file in (path, path / "checkpoints" / "model.ckpt"):
        if file.is_file():
            return str(file.resolve())
    if path.exists() or path.suffix == ".ckpt" or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise ConfigurationError(
            f"comet: {model}: there is no such checkpoint; expected a file (model.ckpt), its folder, or a name that "
            f"COMET downloads, such as {DEFAULT}"
        )
    return model


class Comet:
    """COMET's model in a process of its own, which starts when it is first needed; a context manager.

    Args:
        model: a checkpoint file, or a name that COMET downloads when it is first used.
        threads: of the process; by default what PyTorch takes.
        device: ``cpu``, or ``cuda`` or ``cuda:1``.

    Raises:
        ConfigurationError: there is no such checkpoint.
        SurroundingsError: COMET is not installed.
    """

    def __init__(self, model: str = DEFAULT, *, threads: int | None = None, device: str = "cpu") -> None:
        self.model, self._file, self._python = model, checkpoint(model), find_python()
        self._gpus = int(device.startswith("cuda"))
        self._environment = dict(os.environ)
        if threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(threads)
        if device.startswith("cuda:"):
            number = int(device.removeprefix("cuda:"))
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            self._environment["CUDA_VISIBLE_DEVICES"] = visible[number] if number < len(visible) > 1 else str(number)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self.version = "unknown"
        """Of unbabel-comet, once it has started."""

    def __enter__(self) -> Comet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The number of the process; ``None`` if there is none."""
        return None if self._process is None else self._process.pid

    @property
    def signature(self) -> str:
        """What scores can be compared by: model and version."""
        return f"model:{self.model}|version:{self.version}"

    def start(self) -> None:
        """Start the process and load the model, if this was not done.

        Raises:
            ConfigurationError: the model cannot be loaded.
            SurroundingsError: COMET cannot be imported, or the process ended.
        """
        if self._process is not None:
            return
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                [self._python, str(comet_program.__file__), self._file, str(self._gpus)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=self._environment,
                start_new_session=True,  # signals to this process's group are for it, which then closes the input
            )
        except OSError as error:
            self.close()
            raise SurroundingsError(f"COMET's process cannot be started ({self._python}: {error.strerror})") from error
        self.version = str(self._receive()["version"])

    def score(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
        """f of each sentence, as COMET's own ``predict`` gives it; mostly from 0 to 1, more is better.

        Raises:
            InputError: the numbers of texts differ, or there are none.
            ConfigurationError: the model cannot be loaded.
            SurroundingsError: the process ended.
        """
        check_lines(hypotheses, references)
        if len(sources) != len(hypotheses):
            raise InputError(f"{len(hypotheses)} translations but {len(sources)} sources; expected one for each")
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        texts = {"source": list(sources), "translation": list(hypotheses), "reference": list(references)}
        with contextlib.suppress(OSError):  # it has ended: so the answer says
            self._process.stdin.write(json.dumps(texts).encode() + b"\n")
            self._process.stdin.flush()
        found = [float(value) for value in self._receive()["scores"]]
        assert len(found) == len(hypotheses)
        return found

    def _receive(self) -> dict[str, Any]:
        """The next answer of the process."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            status, last = self._process.wait(), self._last_words()
            self.close()
            how = f"signal {-status}" if status < 0 else f"status {status}{last}"
            raise SurroundingsError(f"COMET's process ended early ({how}); is there enough memory?")
        answer: dict[str, Any] = json.loads(line)
        if "error" not in answer:
            return answer
        self.close()
        message = shortened(" ".join(str(answer["error"]).split()), 300)
        if answer["at"] == "import":
            remedy = _OLD_SETUPTOOLS if "pkg_resources" in message else _INSTALL
            raise SurroundingsError(f"{self._python} cannot import COMET ({message}): {remedy}")
        if answer["at"] == "model":
            raise ConfigurationError(
                f"comet: the model {self.model} cannot be loaded ({message}); expected a checkpoint file, or a name "
                f"that COMET downloads, such as {DEFAULT}"
            )
        raise SurroundingsError(f"COMET cannot score these texts ({message})")

    def _last_words(self) -> str:
        """The last line that the process wrote to standard error."""
        if self._said is None:
            return ""
        self._said.seek(0)
        lines = self._said.read()[-4096:].decode("utf-8", "replace").split("\n")
        return next((f", {shortened(line.strip())}" for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the process; the next score starts another one."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._said is not None:
            self._said.close()
            self._said = None


class CometMetric(Metric):
    """COMET as a metric of sacreBLEU, with the statistics (f, 1) of each sentence.

    Args:
        comet: gives the scores.
        sources: the sentences that were translated.
    """

    def __init__(self, comet: Comet, sources: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comet, self._sources = comet, list(sources)
        self._found: dict[tuple[str, ...], list[list[float]]] = {}

    def get_signature(self) -> Signature:
        """Number of references, model, and version of COMET."""
        signature = Signature({"num_refs": 1})
        signature.info |= {"model": self._comet.model, "version": self._comet.version}
        return signature

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]] | None
    ) -> list[list[float]]:
        """The statistics of each sentence; those of a system are computed once."""
        assert references is not None
        key = tuple(hypotheses)
        if key not in self._found:
            found = self._comet.score(self._sources, hypotheses, references[0])
            self._found[key] = [[score, 1.0] for score in found]
        return self._found[key]

    def _aggregate_and_compute(self, stats: Any) -> Score:
        total, count = (float(sum(column)) for column in zip(*stats, strict=True))
        return self._compute_score_from_stats([total, count])

    def _compute_score_from_stats(self, stats: Any) -> Score:
        return Score("COMET", float(stats[0]) / float(stats[1]))

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        raise AssertionError(f"statistics are those of whole texts, not of {hypothesis!r} with {ref_kwargs}")


@contextlib.contextmanager
def with_comet(model: str | None) -> Iterator[Callable[[Sequence[str]], dict[str, CometMetric]]]:
    """COMET as a further metric of `significance.score_systems`, given the sources; none without a model."""
    if model is None:
        yield lambda _: {}
        return
    with Comet(model) as comet:
        comet.start()
        yield lambda sources: {"COMET": CometMetric(comet, sources)}
