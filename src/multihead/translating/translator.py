"""Text in, text out: the `Translator` that a program holds.

How a sentence is batched never changes its translation, only the speed. Streams and files of lines are translated by
`lines.windows` and `lines.translate_file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multihead.bundle import Bundle, load_bundle, locate, model_digests
from multihead.configuration import build, require_device
from multihead.data.order import batches_by_tokens
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Mean, Search
from multihead.decoding.task import SearchTask
from multihead.engine.search import CompiledSearch, Engine, EngineCache, why_not
from multihead.engine.weights import Precision
from multihead.errors import ConfigurationError, InputError
from multihead.text.languages import Languages
from multihead.translating.lengths import Lengths, lengths_of
from multihead.translating.request import Phrases, Sampling, TranslationRequest
from multihead.translating.searching import (
    Constraints,
    Translation,
    build_restrictions,
    check_ensemble,
    check_room,
    encode_constraints,
    lacking,
    make_translation,
    require_same_vocabularies,
    search_batch,
    symbols_of,
    uncompiled_reason,
    within_tables,
)

if TYPE_CHECKING:
    import torch

    from multihead.decoding.sharpening import Sharpening
    from multihead.decoding.shortlist import Shortlist
    from multihead.decoding.stepper import Stepper
    from multihead.models.network import Network
    from multihead.text.terms import Terms
    from multihead.translating.attention import AttentionMap
    from multihead.translating.datastore import Datastore

__all__ = ["Translation", "Translator"]


class Translator:
    """A model with its tokenizers: raw text to raw text.

    Args:
        bundle: as `multihead.bundle.load_bundle` returns it; `Translator.load` is the usual way.
        folder: where it was read from, if it was; `lengths` and `shortlist` are read from there.

    Example:
        ``Translator.load("run").translate(["Ein Hund rennt.", "Zwei Katzen."])``
    """

    def __init__(self, bundle: Bundle, folder: Path | None = None) -> None:
        self.bundle = bundle
        self.folder = folder
        self._searching: Search | None = None
        self._engines = EngineCache()
        self._others: tuple[Translator, ...] = ()
        self._mean: Mean | None = None  # of an ensemble
        self._origin: Translator | None = None  # of another direction; kept in memory as long as this one
        self.draft: Translator | None = None
        """The model that guesses, if there is one (`with_draft`)."""
        self.datastore: Datastore | None = None
        """The text that the model remembers, if there is one (`with_datastore`)."""
        self.reverse: Translator | None = None
        """The model of the opposite direction, if there is one (`with_reverse`)."""
        self.judge: Translator | None = None
        """The other model of the same direction, if there is one (`with_judge`)."""

    @classmethod
    def load(
        cls, path: str | Path, device: str = "cpu", languages: Languages | None = None, *, lazily: bool = False
    ) -> Translator:
        """Read a model folder, a run folder's best model, or a model of another program (docs/interop.md).

        Args:
            path: the folder.
            device: ``cpu``, ``cuda`` or ``mps``.
            languages: of a model that has several.
            lazily: as of `load_bundle`.

        Raises:
            FormatError: it is none of these, or damaged.
            ConfigurationError: the device does not exist; the model does not have these languages, or has several
                and they do not say which.
        """
        require_device(device)
        asked = languages or Languages()
        bundle = load_bundle(Path(path), device, languages, lazily=lazily).toward(asked)
        bundle.require_direction(path)
        for side in ("source", "target"):
            own, wanted = getattr(bundle, f"{side}_language"), getattr(asked, side)
            if own is None or wanted is None:
                continue
            from multihead.interop.formats.languages import same_language

            if not same_language(wanted, own):
                raise ConfigurationError(
                    f"{path}: the {side} language of this model is {own}, not {wanted}: leave out {side}_language, or "
                    "import the original model again with other languages"
                )
        return cls(bundle, Path(path))

    @classmethod
    def load_ensemble(
        cls,
        paths: Sequence[str | Path],
        device: str = "cpu",
        languages: Languages | None = None,
        *,
        lazily: bool = False,
    ) -> Translator:
        """Read one model, or several as an ensemble that averages probabilities.

        Args:
            paths, device, languages, lazily: as of `load`.

        Raises:
            FormatError, ConfigurationError: as `load` and `ensemble`.
        """
        first, *others = (cls.load(path, device, languages, lazily=lazily) for path in paths)
        return first.ensemble(others) if others else first

    @cached_property
    def lengths(self) -> Lengths:
        """Lengths of the sentences in the model's training data, as far as its folder knows them."""
        return lengths_of(self.folder)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The shortlist that `multihead shortlist` made for this model.

        Raises:
            ConfigurationError: there is none, or it was made for another model.
            FormatError: it is damaged.
        """
        from multihead.translating import shortlist

        return shortlist.read(self.folder, self.bundle)

    def searching(self, **settings: Any) -> Translator:
        """A copy of this translator with other settings of the search: any fields of `decoding.search.Search`.

        Example:
            ``translator.searching(no_repeat=3, without=["Hund"]).translate(texts)``

        Raises:
            ConfigurationError: a setting does not exist or has an impossible value.
        """
        other = copy(self)
        other._searching = build(Search, {**self._own.model_dump(), **settings}, "the search")
        return other

    def ensemble(self, others: Sequence[Translator], mean: Mean = "probabilities") -> Translator:
        """A translator that averages the predictions of this one and others at each step (`decoding.ensemble`).

        It searches with the settings of this one. Attention and the probability of a given translation are those of
        this one alone.

        Args:
            others: one or more with the same vocabularies; of any kind and size. An ensemble among them contributes all
                its models. Each model has the same weight.
            mean: what is averaged.

        Raises:
            ConfigurationError: another vocabulary or device; no other translator.
        """
        joined = copy(self)
        joined._others = (*self._others, *(member for other in others for member in (other, *other._others)))
        check_ensemble([bundle for bundle, _ in joined._members])
        joined._mean = mean
        return joined

    def with_draft(self, draft: Translator) -> Translator:
        """A translator whose greedy search is faster, with the same result: another model guesses (`engine.drafting`).

        It pays for a large model that translates few sentences at a time. The draft does nothing in a beam search, or
        where the search is not compiled.

        Args:
            draft: a much smaller model with the same vocabularies.

        Raises:
            ConfigurationError: it has another vocabulary, or no compiled search.
        """
        require_same_vocabularies(self.bundle, draft.bundle, "the draft")
        if (reason := why_not(draft.bundle.searched)) is not None:
            raise ConfigurationError(f"the draft has no compiled search: {reason}")
        joined = copy(self)
        joined.draft = draft
        return joined

    def with_datastore(self, datastore: str | Path | Datastore) -> Translator:
        """A translator that mixes in what followed similar states in a text (`engine.neighbours`).

        An ensemble remembers by the states of its first model. Everything that the compiled search does not do is
        refused; only a sentence whose translation lacks a placeholder is searched again without the datastore.

        Args:
            datastore: what `multihead datastore` wrote for this model, or the same in memory.

        Raises:
            FormatError: it is no datastore, or damaged.
            ConfigurationError: it is of another model; this one was not read from a folder, or is not searched by
                compiled code.
        """
        from multihead.translating.datastore import check_model, read

        if self.folder is None:
            raise ConfigurationError("a datastore belongs to the model of a folder: load the translator from there")
        joined, digests = copy(self), model_digests(locate(self.folder))
        if isinstance(datastore, str | Path):
            joined.datastore = read(Path(datastore), *digests)
        else:
            check_model(datastore.model, digests, "the datastore")
            joined.datastore = datastore
        joined._find_engine(self._own, Constraints())
        return joined

    def with_reverse(self, reverse: Translator) -> Translator:
        """A translator that can choose among candidates by a model of the opposite direction (`translating.choosing`).

        Args:
            reverse: translates from the target to the source language, with vocabularies of its own; an ensemble's
                probabilities are averaged.

        Raises:
            ConfigurationError: it translates between other languages.
        """
        own = self.bundle
        _require_languages("the reverse model", reverse.bundle, (own.target_language, own.source_language))
        joined = copy(self)
        joined.reverse = reverse
        return joined

    def with_judge(self, judge: Translator) -> Translator:
        """A translator that can choose among candidates by another model of its direction (`translating.choosing`).

        A model that writes from right to left (`text.backwards`) helps most, since it makes other mistakes.

        Args:
            judge: translates between the same languages, with vocabularies of its own; an ensemble's probabilities are
                averaged.

        Raises:
            ConfigurationError: it translates between other languages.
        """
        _require_languages("the judge", judge.bundle, (self.bundle.source_language, self.bundle.target_language))
        joined = copy(self)
        joined.judge = judge
        return joined

    def toward(self, languages: Languages) -> Translator:
        """This translator for another direction of a model that has several; the network is the same one.

        It has no reverse model and no judge: those of this translator have its direction.

        Raises:
            ConfigurationError: the model has no such direction, or has several and they do not say which.
        """
        other = copy(self)
        other._origin = self
        other.bundle = self.bundle.toward(languages)
        other.bundle.require_direction("the model")
        other.reverse = other.judge = None
        return other

    @property
    def networks(self) -> list[Network]:
        """The networks of the ensemble, or the only one."""
        return [bundle.model for bundle, _ in self._members]

    def engines(self, precision: Precision, shortlist: Shortlist | None = None) -> list[Engine] | str:
        """The networks as compiled code, or the reason why there is none."""
        engines = []
        for number, (bundle, made) in enumerate(self._members, start=1):
            engine = made.get(bundle.searched, precision, shortlist)
            if isinstance(engine, str):
                return f"model {number} of the ensemble: {engine}" if self._mean else engine
            engines.append(engine)
        return engines

    @property
    def reach(self) -> int | None:
        """Number of positions that the model tells apart, of an ensemble the smallest; None for any number."""
        reaches = (bundle.searched.max_positions for bundle, _ in self._members)
        return min((reach for reach in reaches if reach is not None), default=None)

    @property
    def _members(self) -> list[tuple[Bundle, EngineCache]]:
        """The models of the ensemble, or the only one."""
        return [(one.bundle, one._engines) for one in (self, *self._others)]

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Translate sentences. One translation per sentence is returned, in order; that of an empty one is empty.

        Args:
            texts: the sentences.
            beam: hypotheses of the beam search; 1 is greedy. This and the next three are the model's own by default.
            alpha: length penalty.
            min_length: minimum number of tokens of a translation, excluding the end symbol.
            max_length: maximum number of tokens of a translation, including the end symbol.
            prefixes: how each translation begins; one per sentence, "" for nothing.
            phrases: what each translation contains: for each sentence words or phrases, or alternatives of one:
                ``[["dog", ("fast", "quick")], []]``.
            batch_tokens: padded source tokens times the beam in a batch: memory against speed. The compiled search,
                which has no padding, ignores it.
            progress: called with the number of newly finished sentences.
        """
        search = self.search_settings(beam, alpha, min_length, max_length)
        request = TranslationRequest(search, texts, prefixes, phrases, scores=False, batch_tokens=batch_tokens)
        return [found.text for found, *_ in self.run(request, progress)]

    def translations(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """As `translate`, with scores and whether each translation is complete.

        Raises:
            InputError: one string instead of a list of them; a lone surrogate in one of them.
            ConfigurationError: an impossible beam, penalty, length or batch size.
        """
        search = self.search_settings(beam, alpha, min_length, max_length)
        request = TranslationRequest(search, texts, prefixes, phrases, batch_tokens=batch_tokens)
        return [translations[0] for translations in self.run(request, progress)]

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        phrases: Sequence[Phrases] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """The ``n`` best translations in the beam of each sentence: finished ones first, then by score.

        They differ in their subwords; two can have the same text. There are fewer where fewer were possible, and one,
        empty, for an empty sentence. Asking for more makes the search go on for longer: the first scores at least as
        high as the one that `translations` finds.

        Raises:
            InputError, ConfigurationError: as `translations`; ``n`` exceeds the beam.
        """
        search = self.search_settings(beam, alpha, min_length, max_length)
        request = TranslationRequest(search, texts, prefixes, phrases, n, batch_tokens=batch_tokens)
        return self.run(request, progress)

    def sample(
        self,
        texts: Sequence[str],
        n: int = 1,
        *,
        seed: int = 0,
        sharpening: Sharpening | None = None,
        keys: Sequence[int] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """``n`` translations of each sentence, drawn from the model's distribution, in the order of drawing.

        A sentence's samples depend on the seed, its key and its text, not on the others or their order.

        Args:
            texts: the sentences; an empty one has one translation, empty.
            n: number of samples of each sentence.
            seed: of the random numbers.
            sharpening: temperature and truncation; by default none.
            keys: a number for each sentence; equal keys draw equal numbers. By default made of the text.
            min_length: minimum number of tokens of a translation, excluding the end symbol.
            max_length: maximum number of tokens of a translation, including the end symbol.
            prefixes: how each translation begins; one per sentence, "" for nothing.
            batch_tokens: padded source tokens times ``n`` in a batch: memory against speed.
            progress: called with the number of newly finished sentences.

        Raises:
            InputError, ConfigurationError: as `translations`; not one key per sentence; fewer than one sample.
        """
        if n < 1:
            raise ConfigurationError(f"expected at least 1 sample of each sentence, got {n}")
        from multihead.decoding.sharpening import Sharpening

        search = self.search_settings(None, None, min_length, max_length)
        sampling = Sampling(sample=n, seed=seed, **vars(sharpening or Sharpening()))
        request = TranslationRequest(search, texts, prefixes, sampling=sampling, keys=keys, batch_tokens=batch_tokens)
        return self.run(request, progress)

    def search_settings(
        self,
        beam: int | None = None,
        alpha: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
    ) -> Search:
        """The settings of this translator's search, with the given ones in place of its own.

        Raises:
            ConfigurationError: an impossible value.
        """
        given = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
        changes = {name: value for name, value in given.items() if value is not None}
        own = self._own
        return build(Search, {**own.model_dump(), **changes}, "the search") if changes else own

    @property
    def _own(self) -> Search:
        return self._searching or self.bundle.generation

    def run(
        self, request: TranslationRequest, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        """The translations of each text of a request, best first or in the order of drawing.

        Args:
            request: the texts, and how to translate them.
            progress: called with the number of newly finished sentences.

        Raises:
            InputError, ConfigurationError: as `translations` and `sample`; weights of a model that
                chooses without one.
        """
        if not request.chooses:
            return self.candidates(request, progress)
        from multihead.translating.choosing import choose

        return [[chosen] for chosen in choose(self, request, progress)]

    def candidates(
        self, request: TranslationRequest, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        """As `run`, before one of the candidates is chosen."""
        constraints = encode_constraints(self.bundle.target_tokenizer, request)
        engine = self._find_engine(request.search, constraints, request.sampling is not None)
        results = [[Translation("", 0.0, True)] for _ in request.texts]
        work = [index for index, text in enumerate(request.texts) if text.strip()]
        if progress is not None and len(work) < len(results):
            progress(len(results) - len(work))
        read = self.annotated([request.texts[place] for place in work], request.terms)
        encoded = self.bundle.source_tokenizer.encode_batch(read)
        lengths = [len(ids) + 1 for ids in encoded]
        if constraints.prefixes or constraints.phrases:
            limits: list[int | None] = [None] * len(results)
            for index, length in zip(work, lengths, strict=True):
                limits[index] = request.search.limit(length)
            check_room(constraints, limits, self.bundle.target_tokenizer.prefix)
        groups = [list(range(len(work)))] if work else []
        if engine is None:
            width = request.search.beam if request.sampling is None else request.sampling.sample
            groups = list(batches_by_tokens(lengths, max(request.batch_tokens // width, 1)))
        if constraints.phrases:
            phrases = constraints.select(work).phrases
            groups = [part for group in groups for part in within_tables(group, phrases)]
        for group in groups:
            places, ids = [work[i] for i in group], [encoded[i] for i in group]
            own = constraints.select(places)
            if request.sampling is None:
                found = self._search(ids, request, own, engine, progress)
                found = self._copied(found, ids, [request.texts[place] for place in places], request, own)
            else:
                found = self._sample(ids, request, own, places, engine, progress)
            for i, hypotheses in zip(group, found, strict=True):
                text = request.texts[work[i]]
                results[work[i]] = [self.translation_of(h, lengths[i], text) for h in hypotheses]
            if progress is not None and engine is None:
                progress(len(group))
        return results

    def annotated(self, texts: Sequence[str], terms: Terms | None) -> list[str]:
        """The texts as the network reads them: with the terms of a request, if it has any.

        Raises:
            ConfigurationError: the model was trained without terms.
        """
        if terms is None:
            return list(texts)
        from multihead.text.terms import for_sources

        return list(map(for_sources(terms, self.bundle.source_tokenizer).annotate, texts))

    def _find_engine(self, search: Search, constraints: Constraints, samples: bool = False) -> CompiledSearch | None:
        """The compiled search, if it supports what is asked for.

        Raises:
            ConfigurationError: it does not, and nothing else supports the precision.
        """
        engine = self._engine_or_reason(search, constraints, samples)
        if isinstance(engine, CompiledSearch):
            return engine
        if self.datastore is not None:
            raise ConfigurationError(f"a datastore cannot be used here: {engine}; leave it out")
        if search.precision != "float32":
            raise ConfigurationError(f"precision {search.precision} is not available here: {engine}; use float32")
        return None

    def _engine_or_reason(
        self, search: Search, constraints: Constraints, samples: bool = False
    ) -> CompiledSearch | str:
        """The compiled search, or the reason why it does not support what is asked for."""
        copies = samples and bool(self.bundle.target_tokenizer.copied)
        reason: str | None = "samples with placeholders are not compiled" if copies else None
        reason = reason or uncompiled_reason(search, constraints)
        shortlist = self.shortlist if search.shortlist and reason is None else None
        return reason or self._get_engine(search.precision, shortlist)

    def _get_engine(self, precision: Precision, shortlist: Shortlist | None) -> CompiledSearch | str:
        """The compiled search of the model or the ensemble, or the reason why there is none."""
        engines = self.engines(precision, shortlist)
        if isinstance(engines, str):
            return engines
        found: CompiledSearch = engines[0]
        if self._mean is not None:
            from multihead.engine.ensemble import EngineEnsemble

            found = EngineEnsemble(engines, self._mean)
        if self.datastore is not None:
            return self.datastore.join(found)
        if self.draft is None:
            return found
        from multihead.engine.drafting import DraftedSearch

        draft = self.draft._engines.get(self.draft.bundle.searched, precision)
        return draft if isinstance(draft, str) else DraftedSearch(found, draft)

    def _search(
        self,
        ids: list[list[int]],
        request: TranslationRequest,
        constraints: Constraints,
        engine: CompiledSearch | None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of sentences; the compiled search reports its own progress."""
        tokenizer, search = self.bundle.target_tokenizer, request.search
        task = SearchTask(symbols_of(tokenizer), n_best=request.candidates, scores=request.scores)
        if engine is not None:
            return engine.search([[*row, tokenizer.eos_id] for row in ids], task, search, progress=progress)
        import torch

        task = replace(task, restrictions=build_restrictions(search, tokenizer, constraints))
        self.bundle.model.eval()
        with torch.no_grad():
            return search_batch(self._stepper(search.shortlist), *self.collate(ids), task, search, constraints.phrases)

    def _copied(
        self,
        found: list[list[Hypothesis]],
        ids: list[list[int]],
        texts: list[str],
        request: TranslationRequest,
        constraints: Constraints,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of sentences, each with the placeholders of its sentence."""
        tokenizer = self.bundle.target_tokenizer
        if not tokenizer.copied:
            return found
        if not any(lacking(tokenizer, own, tokenizer.copies(text)) for own, text in zip(found, texts, strict=True)):
            return found
        import torch

        from multihead.translating.copying import with_placeholders

        with torch.no_grad():
            return with_placeholders(self, found, ids, texts, request, constraints)

    def _sample(
        self,
        ids: list[list[int]],
        request: TranslationRequest,
        constraints: Constraints,
        places: list[int],
        engine: CompiledSearch | None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Samples of sentences; ``places``: of these in the request. Compiled code reports its own progress."""
        from multihead.decoding.sharpening import Sharpening

        assert request.sampling is not None
        tokenizer, texts = self.bundle.target_tokenizer, request.texts
        keys = [_key(texts[place]) if request.keys is None else request.keys[place] for place in places]
        task = SearchTask(symbols_of(tokenizer), n_best=request.candidates)
        how: dict[str, Any] = {
            "seed": request.sampling.seed, "keys": keys, "sharpening": Sharpening(**request.sampling.limits),
        }  # fmt: skip
        if engine is not None:
            from multihead.engine import sampling

            rows = [[*row, tokenizer.eos_id] for row in ids]
            return sampling.sample(engine, rows, task, request.search, **how, progress=progress)
        import torch

        from multihead.decoding.sampling import sample

        restrictions = build_restrictions(request.search, tokenizer, constraints)
        if tokenizer.copied:
            from multihead.translating.copying import once

            wanted = [tokenizer.copies(texts[place]) for place in places]
            lengths = [len(row) + 1 for row in ids]
            restrictions.insert(
                bool(request.search.without), once(tokenizer, wanted, request.search, lengths, constraints)
            )
        self.bundle.model.eval()
        with torch.no_grad():
            task = replace(task, restrictions=restrictions)
            return sample(self._stepper(request.search.shortlist), *self.collate(ids), task, request.search, **how)

    @property
    def stepper(self) -> Stepper[Any]:
        """What is searched step by step: the model or an ensemble, with the whole vocabulary or a shortlist."""
        return self._stepper(self._own.shortlist)

    def _stepper(self, shortlist: bool) -> Stepper[Any]:
        """As `stepper`, with or without the shortlist."""
        if self._mean is not None:
            from multihead.decoding.ensemble import Ensemble

            ensemble = Ensemble([network.eval() for network in self.networks], self._mean)
            return ensemble.each(self._within) if shortlist else ensemble
        stepper = self._engines.stepper(self.bundle.model)
        return self._within(stepper) if shortlist else stepper

    def _within(self, stepper: Stepper[Any]) -> Stepper[Any]:
        """A model with the shortlist."""
        from multihead.decoding.shortlist import Shortlisted

        return Shortlisted(stepper, self.shortlist, self.bundle.model.config.target_vocab)

    @property
    def compiled(self) -> bool:
        """Whether its searches run as compiled code, unless a single one asks for something that is not compiled."""
        return self.engine is not None

    @property
    def uncompiled(self) -> str | None:
        """Why its searches do not run as compiled code; None if they do."""
        found = self._engine_or_reason(self._own, Constraints())
        return found if isinstance(found, str) else None

    @property
    def engine(self) -> CompiledSearch | None:
        """The compiled search; None if the settings of this translator ask for something that is not compiled."""
        return self._find_engine(self._own, Constraints())

    def collate(self, ids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded sources and their lengths, on the model's device."""
        from multihead.data.batching import collate_source

        tokenizer = self.bundle.source_tokenizer
        source, lengths = collate_source(ids, tokenizer.pad_id, tokenizer.eos_id)
        device = self.bundle.model.output.weight.device
        return source.to(device), lengths.to(device)

    def translation_of(self, hypothesis: Hypothesis, source_tokens: int, source: str) -> Translation:
        """A hypothesis as text; ``source_tokens``: of its sentence, including the end symbol."""
        return make_translation(hypothesis, self.bundle.target_tokenizer, source_tokens, self.reach, source)

    def attention(self, text: str, translation: str | None = None) -> AttentionMap:
        """Every head's weights while ``translation`` (by default: our own) is written for ``text``.

        Raises:
            InputError: an empty sentence; a lone surrogate.
        """
        if not text.strip():
            raise InputError("an empty sentence has no attention to show")
        ids = self.bundle.source_tokenizer.encode(text)
        if translation is not None:
            return self.attention_of(ids, self.bundle.target_tokenizer.answers([translation], [text])[0])
        self.bundle.model.eval()
        request = TranslationRequest(self._own)
        rows = self._search([ids], request, Constraints(), self.engine)
        ((found,),) = self._copied(rows, [ids], [text], request, Constraints())
        return self.attention_of(ids, list(found.tokens))

    def attention_of(self, read: list[int], written: list[int]) -> AttentionMap:
        """As `attention`, for tokens without begin and end, which need not be the tokenizer's segmentation."""
        from multihead.translating.attention import attention_of

        return attention_of(self.bundle, read, written)


def _require_languages(what: str, bundle: Bundle, wanted: tuple[str | None, str | None]) -> None:
    """Raise ConfigurationError if a model translates between other languages, as far as they are known."""
    got = bundle.source_language, bundle.target_language
    if any(one and two and one != two for one, two in zip(wanted, got, strict=True)):
        raise ConfigurationError(f"{what} translates {got[0]} to {got[1]}, expected {wanted[0]} to {wanted[1]}")


def _key(text: str) -> int:
    """A number made of the text, the same in every process."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
