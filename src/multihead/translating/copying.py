"""Search again where a placeholder is missing or written twice.

A model that was trained with placeholders (`text.placeholders`) mostly copies each of them once, and then the usual
search has found it. Other sentences are searched again step by step, with each placeholder as a phrase that must appear
(`decoding.lexical`) and not twice (`decoding.once`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from multihead.bundle import Bundle
from multihead.data.order import batches_by_tokens
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.lexical import automaton
from multihead.decoding.once import Once
from multihead.decoding.restrictions import Restriction
from multihead.decoding.search import Search
from multihead.decoding.stepper import Stepper
from multihead.decoding.task import SearchTask
from multihead.text.tokenizer import Tokenizer
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Constraints, build_restrictions, lacking, search_batch, symbols_of


@runtime_checkable
class Copying(Protocol):
    """What is needed of a `translating.translator.Translator`."""

    @property
    def bundle(self) -> Bundle:
        """The model, of an ensemble the first, with its vocabularies."""

    @property
    def stepper(self) -> Stepper[Any]:
        """What is searched."""

    def searching(self, **settings: Any) -> Copying:
        """The same with other settings of the search."""

    def collate(self, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Padded sources and their lengths."""


_PHRASES = 8
"""Placeholders up to which each is a phrase; a search with more phrases has too many states."""
_BEAM = 4


def fitting(wanted: Sequence[Sequence[int]], limits: Sequence[int], constraints: Constraints) -> list[list[int]]:
    """The placeholders of each sentence that fit into its limit, besides prefix, phrases and end symbol.

    The others are left to `Tokenizer.filled`.
    """
    taken = [0] * len(wanted)
    for place, prefix in enumerate(constraints.prefixes):
        taken[place] += len(prefix)
    for place, phrases in enumerate(constraints.phrases):
        taken[place] += int(automaton(phrases).needed[0])
    return [list(own[: max(limit - 1 - used, 0)]) for own, limit, used in zip(wanted, limits, taken, strict=True)]


def once(
    tokenizer: Tokenizer,
    wanted: Sequence[Sequence[int]],
    search: Search,
    lengths: Sequence[int],
    constraints: Constraints,
) -> Once:
    """The restriction of sentences with these placeholders and numbers of source tokens, end symbols included."""
    limits = [search.limit(length) for length in lengths]
    return Once(fitting(wanted, limits, constraints), sorted(tokenizer.copied), limits, tokenizer.eos_id)


def search_again(
    stepper: Stepper[Any],
    source: Tensor,
    lengths: Tensor,
    task: SearchTask,
    search: Search,
    tokenizer: Tokenizer,
    constraints: Constraints,
    wanted: Sequence[Sequence[int]],
) -> list[list[Hypothesis]]:
    """The n best hypotheses of sentences, each with its placeholders exactly once.

    Args:
        stepper: the model, with its whole vocabulary.
        source: the sentences, padded, with the end symbol.
        lengths: number of ids of each.
        task: symbols, number of hypotheses and recorder; its restrictions are made here.
        search: how to search; the beam has at least 4 places.
        tokenizer: of the target side.
        constraints: other constraints of the sentences.
        wanted: the placeholders of each sentence.

    Raises:
        ConfigurationError: as `search_batch`.
    """
    beam = search.beam if search.groups > 1 else max(search.beam, _BEAM)
    search = search.model_copy(update={"beam": beam, "precision": "float32", "shortlist": False})
    restrictions: list[Restriction] = [*build_restrictions(search, tokenizer, constraints)]
    sizes: list[int] = lengths.tolist()
    restrictions.insert(bool(search.without), once(tokenizer, wanted, search, sizes, constraints))
    phrases = [list(own) for own in constraints.phrases] or [[] for _ in wanted]
    if search.groups == 1:
        fit = fitting(wanted, [search.limit(size) for size in sizes], constraints)
        for own, ids in zip(phrases, fit, strict=True):
            own += [[[i]] for i in ids] if len(own) + len(ids) <= _PHRASES else []
    again = SearchTask(task.symbols, n_best=task.n_best, restrictions=restrictions, recorder=task.recorder)
    return search_batch(stepper, source, lengths, again, search, phrases if any(phrases) else ())


def with_placeholders(
    translator: Copying,
    found: list[list[Hypothesis]],
    ids: Sequence[list[int]],
    texts: Sequence[str],
    request: TranslationRequest,
    constraints: Constraints,
) -> list[list[Hypothesis]]:
    """Hypotheses of sentences, searched again where one lacks a placeholder.

    Args:
        translator: the model.
        found: what a search found for each sentence.
        ids: of each sentence, without the end symbol.
        texts: the sentences.
        request: how to search, and how many hypotheses are wanted.
        constraints: of the sentences.
    """
    target = translator.bundle.target_tokenizer
    wanted = [target.copies(text) for text in texts]
    again = [i for i, own in enumerate(wanted) if lacking(target, found[i], own)]
    stepper, results = translator.searching(shortlist=False).stepper, list(found)
    for group in batches_by_tokens([len(ids[i]) + 1 for i in again], max(request.batch_tokens // 8, 1)):
        places = [again[i] for i in group]
        rows = search_again(
            stepper,
            *translator.collate([ids[i] for i in places]),
            SearchTask(symbols_of(target), n_best=request.candidates),
            request.search,
            target,
            constraints.select(places),
            [wanted[i] for i in places],
        )
        for place, row in zip(places, rows, strict=True):
            results[place] = row
    return results
