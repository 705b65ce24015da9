"""The judge of a run: the loss of the validation set, real translations of it, and the best model so far on disk.

Several processes that train together share the work of a validation; each has the result of all.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multihead.bundle import Bundle, save_bundle
from multihead.data.batching import collate
from multihead.data.order import batches_by_tokens
from multihead.metrics.scores import score
from multihead.models.network import Network
from multihead.planning.settings import RunConfig
from multihead.preparing.preparation import Prepared
from multihead.text.tokenizer import Tokenizer
from multihead.training.loss import sequence_loss
from multihead.training.parallel import SINGLE_PROCESS, Processes, interleave
from multihead.training.trainer import Validation
from multihead.translating.translator import Translator

_SENTENCES = 1000
"""Sentences decoded at each validation; the loss is of all."""


class Best:
    """Judges models on the validation set and keeps the best one.

    Args:
        config: everything decided about the run.
        prepared: its text.
        folder: the run folder; the best model goes to ``folder/best``.
        processes: those that train together.
    """

    def __init__(
        self, config: RunConfig, prepared: Prepared, folder: Path, processes: Processes = SINGLE_PROCESS
    ) -> None:
        self.config, self.prepared, self.folder = config, prepared, folder
        self._processes, self._share = processes, slice(processes.rank, None, processes.size)
        lengths = [
            int(a) + int(b) + 2
            for a, b in zip(prepared.valid.source.lengths, prepared.valid.target.lengths, strict=True)
        ]
        groups = batches_by_tokens(lengths, 2 * config.training.batch_tokens)
        ids = {"pad_id": Tokenizer.pad_id, "bos_id": Tokenizer.bos_id, "eos_id": Tokenizer.eos_id}
        self._batches = [collate(prepared.valid, np.array(group), **ids) for group in groups]

    def evaluate(self, model: Network) -> Validation:
        """Loss of all pairs; BLEU and chrF of greedy translations of the first ones."""
        sources = self.prepared.valid_sources[:_SENTENCES]
        translator = Translator(self._bundle(model))
        shares = self._processes.all_gather(
            (self._losses(model), translator.translate(sources[self._share], beam=1, batch_tokens=8192))
        )
        nll, correct, tokens = 0.0, 0, 0
        for batch in interleave([losses for losses, _ in shares]):
            nll, correct, tokens = nll + batch[0], correct + batch[1], tokens + batch[2]
        hypotheses = interleave([translations for _, translations in shares])
        references = self.prepared.valid_targets[:_SENTENCES]
        scores = score(hypotheses, references, self.config.data.target_language)
        perplexity = float(torch.tensor(nll / tokens).clamp(max=100.0).exp())
        values = {
            "loss": nll / tokens,
            "perplexity": perplexity,
            "accuracy": correct / tokens,
            "sentences": len(sources),
            **scores.as_dict(),
            "sample": {"source": sources[0], "translation": hypotheses[0], "reference": references[0]},
        }
        summary = (
            f"loss {nll / tokens:.3f}  perplexity {perplexity:.2f}  accuracy {100 * correct / tokens:.1f}%  "
            f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}"
        )
        return Validation(scores.bleu, nll / tokens, values, summary)

    @torch.no_grad()
    def _losses(self, model: Network) -> list[tuple[float, int, int]]:
        """Of each batch of this process: the loss, the tokens guessed right, and all of them."""
        found = []
        for batch in self._batches[self._share]:
            sums = sequence_loss(model, batch.to(self.config.training.device), 0.0)
            found.append((sums.nll.item(), int(sums.correct.item()), batch.target_tokens))
        return found

    def keep(self, model: Network, metrics: dict[str, Any]) -> None:
        """Writes run/best."""
        shown = {name: value for name, value in metrics.items() if name != "sample"}
        save_bundle(self.folder / "best", self._bundle(model), shown, self._made_by())

    def _made_by(self) -> str:
        """A sentence for the card."""
        tool, pairs, given = f"multihead {version('multihead')}", self.config.data.pairs, self.config.from_model
        if given is None:
            return f"Trained by {tool} on {pairs:,} sentence pairs."
        return f"Fine-tuned by {tool} on {pairs:,} sentence pairs, from a model whose weights are {given.weights[:12]}."

    def _bundle(self, model: Network) -> Bundle:
        prepared, data = self.prepared, self.config.data
        return Bundle(
            model,
            prepared.source_tokenizer,
            prepared.target_tokenizer,
            self.config.generation,
            data.source_language,
            data.target_language,
        )
