"""Weights of pairs: the loss counts a pair as often as its weight says."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from multihead.configuration import Launch
from multihead.data.attached import AttachedStream
from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError, DataError, FormatError, Interrupted
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.network import Network
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer
from multihead.planning.settings import CorpusRecord, RunConfig, TextFile, are_twins
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.preparing.side_files import lines_per_corpus
from multihead.preparing.weights import pair_weights
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext
from multihead.training.splitting import BothShares, SingleProcess
from multihead.training.step import train_step

if TYPE_CHECKING:
    from tests.conftest import Numbers

SIZES = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
SHORT = {"updates": 6, "validate_every": 3, "log_every": 2, "batch_tokens": 512, "threads": 1, "precision": "float32"}
WISHES: dict[str, Any] = {**SIZES, **SHORT, "keep_checkpoints": 9}
CONFIG = TrainingConfig(updates=1, smoothing=0.1, clip=0.0)


@pytest.fixture
def unchecked(without_checks) -> Iterator[None]:
    with without_checks():
        yield


# ------------------------------------------------------------------------------------------ what a weight means


def batch_of(rows: list[int], weights: list[float] | None = None) -> Batch:
    draw = np.random.default_rng(3)
    sources, targets = ([draw.integers(3, 20, 2 + n % 4).tolist() for n in range(6)] for _ in range(2))
    store = ParallelStore.from_lists(sources, targets)
    batch = collate(store, np.array(rows), pad_id=0, bos_id=1, eos_id=2)
    if weights is None:
        return batch
    return Batch(**{**vars(batch), "weights": torch.tensor(weights, dtype=torch.float32)})


def transformer() -> Network:
    torch.manual_seed(1)
    small = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
    return Transformer(TransformerConfig(source_vocab=20, target_vocab=20, **small))


def recurrent() -> Network:
    torch.manual_seed(1)
    return RecurrentTranslator(RecurrentConfig(source_vocab=20, target_vocab=20, width=16, dropout=0.0))


def gradient(model: Network, *batches: Batch, **options: Any) -> dict[str, torch.Tensor]:
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), batches, CONFIG, 1, 0.0, **options)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-7)


@pytest.fixture(params=["packed", "padded", "recurrent"])
def model(request, monkeypatch) -> Network:
    if request.param == "padded":
        monkeypatch.setattr(Transformer, "_packs", lambda *_: False)
    return recurrent() if request.param == "recurrent" else transformer()


def test_a_pair_of_weight_2_is_the_pair_twice(model: Network) -> None:
    close(gradient(model, batch_of([0, 1, 2, 3], [1, 2, 1, 1])), gradient(model, batch_of([0, 1, 1, 2, 3])))


def test_a_pair_of_weight_0_is_not_there(model: Network) -> None:
    close(gradient(model, batch_of([0, 1, 2, 3], [1, 0, 1, 0])), gradient(model, batch_of([0, 2])))


def test_the_size_of_all_weights_cancels(model: Network) -> None:
    close(gradient(model, batch_of([0, 1, 2], [0.5, 2, 1])), gradient(model, batch_of([0, 1, 2], [2, 8, 4])))


def test_weights_of_1_change_no_bit(model: Network) -> None:
    plain, weighted = gradient(model, batch_of([0, 1, 2, 3])), gradient(model, batch_of([0, 1, 2, 3], [1] * 4))
    assert all(torch.equal(plain[name], weighted[name]) for name in plain)


def test_weights_hold_in_pieces_batches_and_shares() -> None:
    """Two batches of an update have one divisor; pieces of a batch keep the weights of their rows."""
    model, weights = transformer(), [0.5, 2.0, 0.0, 3.0, 1.0, 0.25]
    whole = gradient(model, batch_of([*range(6)], weights))
    close(whole, gradient(model, batch_of([0, 1, 2], weights[:3]), batch_of([3, 4, 5], weights[3:])))
    close(whole, gradient(model, batch_of([*range(6)], weights), max_cells=8))
    close(whole, gradient(model, batch_of([*range(6)], weights), processes=BothShares(Launch())))


def test_a_batch_of_nothing_but_weight_0_has_no_gradient() -> None:
    assert all(not found.any() for found in gradient(transformer(), batch_of([0, 1], [0, 0])).values())


def test_the_statistics_are_those_of_the_text() -> None:
    """Loss, hits and tokens of the log do not depend on weights."""
    model = transformer()
    sums = [
        train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), [batch], CONFIG, 1, 0.0)
        for batch in (batch_of([0, 1, 2]), batch_of([0, 1, 2], [3.0, 0.0, 0.5]))
    ]
    assert sums[0]._replace(gradient_norm=0.0) == pytest.approx(sums[1]._replace(gradient_norm=0.0))


def test_sampled_positions_refuse_weights() -> None:
    network = RecurrentTranslator(RecurrentConfig(source_vocab=20, target_vocab=20, width=16, alignment="sample"))
    with pytest.raises(ConfigurationError, match="without soft targets, weights and links"):
        gradient(network, batch_of([0, 1], [1, 2]))


# ------------------------------------------------------------------------------------------ from a file to the batches


def config_of(run: Path) -> RunConfig:
    return RunConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))


def stream_of(run: Path, folder: Path | None = None) -> tuple[AttachedStream, PreparedText]:
    config = config_of(run)
    prepared = open_training_text(run, config.data, folder)
    assert config.weights is not None
    weights = pair_weights(run, config.weights, prepared, RunContext(say=lambda _: None))
    stream = prepared.batches(config.training, (0, 0))
    return AttachedStream(stream, [weights.attached], weights.divisor), prepared


@pytest.fixture(scope="module")
def faulty(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Text in which some lines are not pairs, and a weight for each line that identifies the line."""
    folder = tmp_path_factory.mktemp("faulty")
    pairs = [(" ", "nothing") if n % 7 == 2 else pair for n, pair in enumerate(numbers.pairs(120, 5))]
    pairs[40] = ("eins " * 300, "one")
    files = numbers.write(folder, "train", pairs)
    weights = folder / "weights.txt"
    weights.write_text("".join(f"{(n + 1) / 8}\n" for n in range(120)), encoding="utf-8")
    return {**files, **numbers.valid, "weights": weights}


@pytest.mark.usefixtures("unchecked")
def test_weights_belong_to_lines_and_a_stopped_run_keeps_them(faulty, numbers, tmp_path) -> None:
    wishes = {**WISHES, **faulty, "max_tokens": 60}
    numbers.learn(tmp_path / "whole", **wishes)
    stream, prepared = stream_of(tmp_path / "whole")
    assert prepared.config.left_out == 18
    for _ in range(4):
        batch = stream.take()
        assert batch.weights is not None
        assert batch.weights.tolist() == [line / 8 for line in prepared.train.lines[batch.indices]]

    given = {**wishes, "weights": tmp_path / "again.txt"}
    given["weights"].write_bytes(faulty["weights"].read_bytes())
    stops = iter((0, 0, 1))
    with pytest.raises(Interrupted):
        numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(stops, 0) else None, **given)
    stops = iter((0, 0, 0, 1))
    with pytest.raises(Interrupted, match="after update"):
        numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(stops, 0) else None, **given)
    given["weights"].unlink()  # the run has them
    numbers.learn(tmp_path / "run", **given)
    without = ("log.txt", "timing.jsonl", "run.json", "run.copy.json", "manifest.json")
    whole, resumed = (numbers.contents(tmp_path / name, without=without) for name in ("whole", "run"))
    assert {name for name in whole if whole[name] != resumed.get(name)} == set()


@pytest.mark.usefixtures("unchecked")
def test_weights_of_1_give_the_model_of_no_weights(numbers, tmp_path) -> None:
    (tmp_path / "ones").write_text("1\n" * 600, encoding="utf-8")
    files = {**numbers.train, **numbers.valid}
    prepare(**files, output=tmp_path / "text", say=lambda _: None)
    numbers.learn(tmp_path / "plain", data=tmp_path / "text", **WISHES)
    numbers.learn(tmp_path / "ones.run", data=tmp_path / "text", weights=tmp_path / "ones", **WISHES)
    plain, ones = (numbers.contents(tmp_path / name) for name in ("plain", "ones.run"))
    differing = {name.split("/")[0] for name in plain.keys() | ones.keys() if plain.get(name) != ones.get(name)}
    assert differing <= {"weights", "run.json", "run.copy.json", "manifest.json", "log.txt", "timing.jsonl"}
    assert '"weights"' not in (tmp_path / "plain" / "run.json").read_text(encoding="utf-8").split('"data"')[1]


class Together(SingleProcess):
    def __init__(self, rank: int) -> None:
        super().__init__(Launch(rank=rank, size=2))


def test_processes_know_the_divisor_of_the_whole_batch(faulty, numbers, tmp_path) -> None:
    numbers.learn(tmp_path / "run", **{**WISHES, **faulty, "updates": 1, "validate_every": 1})
    whole = stream_of(tmp_path / "run")[0].take()
    portions = [stream_of(tmp_path / "run")[0].take_portion(rank, 2) for rank in (0, 1)]
    assert sum(portion.rows.divisor for portion in portions) == pytest.approx(whole.divisor)
    for rank, portion in enumerate(portions):
        assert Together(rank).count_tokens([portion]).divisor == pytest.approx(whole.divisor)


def test_lines_of_several_corpora_follow_one_another() -> None:
    """A corpus that is read both ways counts its lines once; one that is read only in reverse counts its own."""

    def record(name: str, lines: int, pairs: int, *, backwards: bool = False) -> CorpusRecord:
        files = [TextFile(path=f"{name}.{code}", sha256=name + code, lines=lines) for code in ("de", "en")]
        return CorpusRecord(files=tuple(files[::-1] if backwards else files), pairs=pairs, reversed=backwards)

    corpora = [record("a", 10, 9), record("a", 10, 8, backwards=True), record("b", 5, 5, backwards=True)]
    corpora.append(record("c", 2, 1))
    found = lines_per_corpus(corpora)
    assert [(one.start, one.pairs, one.reversed) for one in found] == [
        (0, 9, False),
        (0, 8, True),
        (10, 5, True),
        (15, 1, False),
    ]


@pytest.mark.parametrize("by", ["columns", "languages", "languages of twins"])
def test_two_corpora_of_one_file_have_lines_of_their_own(by: str) -> None:
    """Each is read both ways; columns or languages tell which column of the file is read."""

    def record(target: str, *, backwards: bool) -> CorpusRecord:
        codes = (target, "de") if backwards else ("de", target)
        named = by == "languages" or (by == "languages of twins" and (backwards or target == "fr"))
        both = dict(zip(("source_language", "target_language"), codes, strict=True))
        languages: dict[str, Any] = both if named else {}
        columns = ("de", target) if by == "columns" else None
        file = TextFile(path="m.tsv", sha256="m", lines=100)
        return CorpusRecord(files=(file,), pairs=90, columns=columns, reversed=backwards, **languages)

    corpora = [record(target, backwards=backwards) for target in ("en", "fr") for backwards in (False, True)]
    assert are_twins(corpora) == [False, True, False, True]
    assert [one.start for one in lines_per_corpus(corpora)] == [0, 0, 100, 100]
    turned = [corpora[place] for place in (0, 2, 1, 3)]  # as in derived text
    assert [one.start for one in lines_per_corpus(turned)] == [0, 100, 0, 100]


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n" * 599, r"weights.txt: has 599 lines of weights, but the training text has 600 \(.*train.de has 600\)"),
        ("1\n" * 300 + "much\n" * 300, "weights.txt:301: 'much' is not a weight; expected a number from 0 to 1000"),
        ("1\n" * 599 + "-0.5\n", "weights.txt:600: '-0.5' is not a weight"),
        ("nan\n" * 600, "weights.txt:1: 'nan' is not a weight"),
        ("1\n" + "\n" * 599, "weights.txt:2: '' is not a weight"),
        ("0\n" * 600, "all weights are 0"),
    ],
)
def test_what_is_no_weight_is_refused_before_anything_is_written(numbers, tmp_path, content, message) -> None:
    (tmp_path / "weights.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        numbers.learn(tmp_path / "run", **numbers.train, **numbers.valid, weights=tmp_path / "weights.txt", **WISHES)
    assert not (tmp_path / "run").exists()


def test_other_weights_are_refused_once_a_run_has_begun(faulty, numbers, tmp_path) -> None:
    own = tmp_path / "weights.txt"
    own.write_bytes(faulty["weights"].read_bytes())
    wishes = {**WISHES, **faulty, "weights": own}
    stops = iter((0, 0, 0, 1))
    with pytest.raises(Interrupted, match="after update"):
        numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(stops, 0) else None, **wishes)
    (tmp_path / "run" / "weights" / "weights.bin").write_bytes(b"\0" * 480)
    with pytest.raises(FormatError, match=r"weights\.bin"):
        numbers.learn(tmp_path / "run", **wishes)
    shutil.rmtree(tmp_path / "run" / "weights")
    own.write_text("1\n" * 120, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="has changed since this run began"):
        numbers.learn(tmp_path / "run", **wishes)


def test_pairs_that_are_not_lines_have_no_weights(numbers, tmp_path) -> None:
    (tmp_path / "de.po").write_text('msgid "a"\nmsgstr "b"\n\nmsgid "c"\nmsgstr "d"\n', encoding="utf-8")
    (tmp_path / "weights.txt").write_text("1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"a pair of .*de.po is not a line; write its pairs to a .tsv"):
        numbers.learn(
            tmp_path / "run", source=tmp_path / "de.po", **numbers.valid, weights=tmp_path / "weights.txt", **WISHES
        )
