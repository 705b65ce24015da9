"""Prepared text made from prepared text: directions, additions, parts.

It keeps the subwords of the text that it is made from, so that the models of both have the same vocabulary and can be
averaged, searched as an ensemble, or trained on from each other. `runs.best` and `runs.report` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from multihead import work_folder
from multihead.data.corpus import Pair
from multihead.data.order import Array, usual_order
from multihead.data.store_writers import ParallelWriter
from multihead.errors import ConfigurationError
from multihead.planning.corpus_settings import CorpusSettings
from multihead.planning.settings import CorpusRecord, DataConfig, PrepareSettings
from multihead.preparing.corpora import scan_files
from multihead.preparing.prepare import corpus_records, encode_corpora, write_manifest, write_valid
from multihead.preparing.prepared import PreparedText
from multihead.preparing.shards import SHARD, Encoder, Joiner
from multihead.preparing.subwords import Vocabulary
from multihead.text import languages
from multihead.text.backwards import BackwardsTokenizer
from multihead.training.context import RunContext

T = TypeVar("T")
Direction = Literal["forward", "reverse", "both", "backwards"]
"""Which side of a pair is the source: as in the text, the other one, or first the one and then the other. Backwards: as
in the text, with targets from right to left."""


def derive(
    text: PreparedText,
    folder: Path,
    context: RunContext,
    *,
    direction: Direction = "forward",
    added: Sequence[CorpusSettings] = (),
    kept: Array | None = None,
) -> None:
    """Write a folder of prepared text, as `multihead prepare` does, unless it is there already.

    Args:
        text: what it is made from.
        folder: where to write it.
        context: may stop the work.
        direction: which side is the source. For both, every pair is written twice, and the two languages have one
            vocabulary; validation pairs keep their direction.
        added: files of pairs; those that can be used follow the pairs of ``text``.
        kept: the training pairs to keep, as ascending indices of the store; all if ``None``.

    Raises:
        ConfigurationError: text of several directions is to be exchanged or extended.
        DataError: a file cannot be read as pairs.
        Interrupted: ``context.stop_signal`` returned a signal; nothing is left.
    """
    if text.config.directions and (direction != "forward" or added):
        raise ConfigurationError("text of several directions is neither exchanged nor extended")
    with work_folder.locked(folder):
        if work_folder.is_begun(folder, work_folder.PREPARED):
            return
        with work_folder.preparing(folder, work_folder.PREPARED):
            exchanged, turned = direction == "reverse", None
            vocabulary = Vocabulary(*_order(exchanged, text.source_tokenizer, text.target_tokenizer))
            if direction == "backwards":
                vocabulary, turned = vocabulary.backwards(), BackwardsTokenizer(text.target_tokenizer).turned
            vocabulary.save(folder / "data")
            with ParallelWriter(folder / "data/train", len(vocabulary.source), len(vocabulary.target)) as writer:
                orders = (False, True) if direction == "both" else (exchanged,)
                copied = (_copy_train(text, writer, order, kept, turned) for order in orders)
                corpora = tuple(record for records in copied for record in records)
                corpora += _add_files(text, writer, vocabulary, context, added)
            sources, targets = _order(exchanged, text.valid_sources, text.valid_targets)
            valid = zip(text.valid.lines.tolist(), sources, targets, strict=True)
            pairs = [Pair(*row) for row in valid]
            parts = [(named or languages.Direction(None, ""), pairs[place]) for named, place in text.valid_parts]
            write_valid(folder / "data", parts, vocabulary)
            config = _describe(text.config, corpora, exchanged).model_copy(update=vocabulary.decisions)
            reasons = dict.fromkeys(("vocab_size", "shared_vocabulary"), "that of the text it was made from")
            write_manifest(folder, config, {}, reasons)


def nested_part(text: PreparedText, share: float, seed: int) -> Array:
    """Indices of a share of each corpus, drawn at random; parts with the same seed contain the smaller ones."""
    random, start, kept = np.random.default_rng(seed), 0, []
    for corpus in text.config.corpora:
        order = random.permutation(corpus.pairs)
        kept.append(start + np.sort(order[: round(share * corpus.pairs)]))
        start += corpus.pairs
    return np.concatenate(kept)


def _copy_train(
    text: PreparedText,
    writer: ParallelWriter,
    exchanged: bool,
    kept: Array | None,
    turned: Callable[[list[int]], list[int]] | None,
) -> tuple[CorpusRecord, ...]:
    """Write the training pairs again; returns what is recorded of their corpora."""
    train, start, corpora = text.train, 0, []
    indices = np.arange(len(train)) if kept is None else kept
    for part in _parts(len(indices)):
        chosen = indices[part.start : part.stop].tolist()
        sources, targets = (
            [side[i].tolist() for i in chosen] for side in _order(exchanged, train.source, train.target)
        )
        targets = targets if turned is None else [turned(ids) for ids in targets]
        writer.append(sources, targets, train.lines[chosen].tolist())
    for corpus in text.config.corpora:
        own = np.searchsorted(indices, (start, start + corpus.pairs))
        record = corpus.exchanged() if exchanged else corpus
        corpora.append(record.model_copy(update={"pairs": int(own[1] - own[0])}))
        start += corpus.pairs
    return tuple(corpora)


def _add_files(
    text: PreparedText,
    writer: ParallelWriter,
    vocabulary: Vocabulary,
    context: RunContext,
    added: Sequence[CorpusSettings],
) -> tuple[CorpusRecord, ...]:
    """Write the pairs of files after those that were copied."""
    if not added:
        return ()
    lengths = range(text.config.min_tokens, text.config.max_tokens + 1)
    files = scan_files(PrepareSettings(corpus=tuple(added)))
    joiner, nothing = Joiner(len(files.train)), [frozenset[int]()] * len(files.train)
    encode_corpora(files, nothing, Encoder(vocabulary.source, vocabulary.target, lengths), joiner, writer, context)
    return corpus_records(files.train, nothing, joiner)


def _describe(config: DataConfig, corpora: tuple[CorpusRecord, ...], exchanged: bool) -> DataConfig:
    source, target = _order(exchanged, config.source_language, config.target_language)
    return config.model_copy(
        update={
            "source_language": source,
            "target_language": target,
            "corpora": corpora,
            "valid": config.valid.exchanged() if config.valid and exchanged else config.valid,
            "valid_more": tuple(one.exchanged() if exchanged else one for one in config.valid_more),
            "pairs": sum(corpus.pairs for corpus in corpora),
            "order": usual_order(sum(corpus.pairs for corpus in corpora)),
            "left_out": sum(corpus.left_out for corpus in corpora),
            "prepared": None,
        }
    )


def _order(exchanged: bool, source: T, target: T) -> tuple[T, T]:
    return (target, source) if exchanged else (source, target)


def _parts(count: int) -> Iterator[range]:
    """Consecutive ranges of at most `SHARD` pairs."""
    return (range(start, min(start + SHARD, count)) for start in range(0, count, SHARD))
