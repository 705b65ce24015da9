"""What a translator works with: other models, and a datastore.

The others of an ensemble predict with it, a reverse model and a judge choose among its candidates.
Commands parse flags to `Companions`, and worker processes are sent them; a server, which shares models between several
uses, has its own (`serving.folders`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multihead.decoding.search import Mean
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Companions:
    """The folders of what a translator works with.

    Args:
        others: further models of an ensemble.
        mean: what the ensemble averages.
        datastore: what the model remembers, by `multihead datastore`.
        reverse: models of the opposite direction.
        judge: other models of the same direction.
    """

    others: tuple[Path, ...] = ()
    mean: Mean = "probabilities"
    datastore: Path | None = None
    reverse: tuple[Path, ...] = ()
    judge: tuple[Path, ...] = ()

    def identity(self, model: Path, languages: Languages) -> str:
        """Identifies a model with all of these by their content, their roles, and the languages.

        Args:
            model: the folder of the model.
            languages: as they were asked for.

        Raises:
            FormatError: a folder is not a model, or no datastore.
        """
        from multihead.bundle import model_digest
        from multihead.translating.datastore import datastore_digest

        pair = "" if languages == Languages() else f" {languages.source}-{languages.target}"
        mean = f" ({self.mean})" if self.others else ""
        remembered = "" if self.datastore is None else f" datastore {datastore_digest(self.datastore)}"
        choosing = [
            f" {name} {'+'.join(map(model_digest, paths))}"
            for name, paths in (("reverse", self.reverse), ("judge", self.judge))
            if paths
        ]
        return "+".join(map(model_digest, (model, *self.others))) + pair + mean + remembered + "".join(choosing)

    def absolute(self) -> Companions:
        """The same folders by their absolute paths."""
        others, reverse, judge = (
            tuple(path.absolute() for path in paths) for paths in (self.others, self.reverse, self.judge)
        )
        store = None if self.datastore is None else self.datastore.absolute()
        return Companions(others, self.mean, store, reverse, judge)

    def join(self, translator: Translator, device: str) -> Translator:
        """The translator with all of them.

        Raises:
            FormatError: a folder is not a model, or no datastore.
            ConfigurationError: they do not fit together.
        """
        if self.datastore is not None:
            translator = translator.with_datastore(self.datastore)
        from multihead.translating.translator import Translator

        there = Languages()
        if translator.bundle.directions:  # models of one direction each need not be told
            there = Languages(translator.bundle.source_language, translator.bundle.target_language)
        if self.others:
            others = [Translator.load(path, device, there, lazily=True) for path in self.others]
            translator = translator.ensemble(others, self.mean)
        if self.reverse:
            back = Languages(there.target, there.source)
            translator = translator.with_reverse(Translator.load_ensemble(self.reverse, device, back, lazily=True))
        if self.judge:
            translator = translator.with_judge(Translator.load_ensemble(self.judge, device, there, lazily=True))
        return translator
