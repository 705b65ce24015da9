"""The peer of `time_to_bleu.py`: trained as its users train it, with validations in between.

The network is `transformers`' MarianMT, the fastest peer of `training.py` in float32; the loop is that of `peers.py`.
The recipes for small corpora (`RECIPES`) are published ones. Users of such recipes average the last checkpoints, so
both the last weights and the average are scored. The peer translates greedily with its own ``generate``.

The clock runs while batches are made and updates are computed. It stops for validations and while the state is saved.
Importing and building the network is not counted. A run that was stopped resumes from its last validation.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peers import END, PAD, adam, common_loop, peer, source_mask
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.order import batches_by_tokens
from multihead.metrics.scores import score
from multihead.preparing.prepared import PreparedText
from multihead.runs.average import mean
from multihead.training.checkpoint import copy_into
from multihead.training.config import TrainingConfig

Point = dict[str, Any]
"""A validation: ``name`` of the curve, ``seconds`` of training without validations, ``updates``, ``loss`` per token of
the validation set, ``bleu`` of its greedy translations, and ``validating``: seconds of all validations so far."""

NAME = "MarianMT"
_MEAN_OF = 10
"""Users of the peer average this many checkpoints; here, the weights at this many validations are averaged."""
_SPACING = 30
"""Validations are at least 1/30 of the training time so far apart, so that a long run has few of them."""


@dataclass(frozen=True)
class Recipe:
    """A published way to train a small Transformer, always with Adam (0.9, 0.98) and label smoothing 0.1."""

    schedule: str
    learning_rate: float
    """The peak for ``width``; for another width D it is multiplied by sqrt(width / D), as in Noam's formula."""
    width: int
    warmup: int
    updates: int
    """The last update."""
    weight_decay: float = 0.0
    dropout: float = 0.3

    def settings(self, width: int, batch_tokens: int, threads: int) -> TrainingConfig:
        """The settings of training for a network of this width."""
        return TrainingConfig(
            updates=self.updates,
            schedule=self.schedule,
            learning_rate=self.learning_rate * math.sqrt(self.width / width),
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            batch_tokens=batch_tokens,
            threads=threads,
        )


RECIPES = {
    "multi30k": Recipe("inverse_sqrt", 5e-3, 128, 2000, 8000),
    "iwslt14": Recipe("inverse_sqrt", 5e-4, 512, 4000, 50_000, weight_decay=1e-4),
    "linear": Recipe("linear", 2.5e-3, 128, 300, 2400),
}
"""multi30k: Wu et al. (2021), for this corpus, with half of their tokens per update. iwslt14: fairseq's example for
small corpora. linear: the schedule of `training.py`, short and falling to 0, which ours also uses."""


class PeerRun:
    """A training of the peer.

    Args:
        text: the prepared text.
        sizes: the sizes of the network.
        recipe: one of `RECIPES`.
        batch_tokens: padded tokens per side in a batch.
        file: where the state is kept.

    Raises:
        SystemExit: the file holds the state of another training.
    """

    def __init__(self, text: PreparedText, sizes: dict[str, int], recipe: str, batch_tokens: int, file: Path) -> None:
        chosen, tokenizer = RECIPES[recipe], text.target_tokenizer
        if (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) != (0, 2, 3):
            raise SystemExit(f"the special ids of the text are {tokenizer.special_ids}; expected 0, 2 and 3")
        vocabulary = {f"{side}_vocab": len(tokenizer) for side in ("source", "target")}
        self.name, self.text, self.file = f"{NAME}, {recipe}", text, file
        self.settings = chosen.settings(sizes["width"], batch_tokens, torch.get_num_threads())
        torch.manual_seed(self.settings.seed)
        model, logits = peer(NAME, {**sizes, **vocabulary, "dropout": chosen.dropout})
        self.model: Any = model
        self.logits, self.optimizer = logits, adam(model, self.settings)
        self.update = common_loop(model, logits, self.optimizer, self.settings)
        self.step, self.seconds, self.validating = 0, 0.0, 0.0
        self.recent: deque[dict[str, Tensor]] = deque(maxlen=_MEAN_OF)
        self._what = str((sizes, asdict(chosen), batch_tokens, tokenizer.digest))
        position = self._restore() if file.exists() else (0, 0)
        self.stream = text.batches(self.settings, position)
        self._batches = self._validation_batches()

    def train(self, limit: float, every: float, record: Callable[[list[Point]], bool]) -> None:
        """Train until ``limit`` seconds, the end of the recipe, or until ``record`` returns True.

        Args:
            limit: seconds of training, including those of earlier starts.
            every: seconds between validations; more in a long run.
            record: called with the points of each validation; returns whether to stop.
        """
        enough = False
        while not enough and self.seconds < limit and self.step < self.settings.updates:
            until = min(self.seconds + max(every, self.seconds / _SPACING), limit)
            while self.seconds < until and self.step < self.settings.updates:
                started = time.perf_counter()
                self.step += 1
                self.update(self.stream.take(), self.step)
                self.seconds += time.perf_counter() - started
            enough = record(self._validate())
            self._save()

    def _validate(self) -> list[Point]:
        """The points of the current weights and of the mean of the most recent ones."""
        started = time.perf_counter()
        parameters = dict(self.model.named_parameters())
        weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        self.recent.append(weights)
        self.model.eval()
        found = {self.name: self._scores()}
        if len(self.recent) > 1:
            copy_into(parameters, mean(iter(self.recent)))
            found[f"{self.name}, mean of {_MEAN_OF}"] = self._scores()
            copy_into(parameters, weights)
        self.model.train()
        self.validating += time.perf_counter() - started
        shared = {"seconds": round(self.seconds, 3), "updates": self.step}
        last = {"validating": round(self.validating, 3)}
        return [{"name": name, **shared, **scores, **last} for name, scores in found.items()]

    def _validation_batches(self) -> list[Batch]:
        store, special = self.text.valid, self.text.target_tokenizer.special_ids
        lengths = [int(max(pair)) + 1 for pair in zip(store.source.lengths, store.target.lengths, strict=True)]
        groups = batches_by_tokens(lengths, self.settings.batch_tokens)
        return [collate(store, np.array(group), **special) for group in groups]

    @torch.no_grad()
    def _scores(self) -> dict[str, float]:
        """Loss per token and BLEU on the validation set."""
        loss, tokens, translations = 0.0, 0, [""] * len(self.text.valid_targets)
        for batch in self._batches:
            scores = self.logits(batch).flatten(0, 1)
            loss += F.cross_entropy(scores, batch.target_output.flatten(), ignore_index=PAD, reduction="sum").item()
            tokens += batch.target_tokens
            for index, translation in zip(batch.indices.tolist(), self._translate(batch), strict=True):
                translations[index] = translation
        found = score(translations, self.text.valid_targets, self.text.config.target_language)
        return {"loss": loss / tokens, "bleu": found.bleu}

    def _translate(self, batch: Batch) -> list[str]:
        """Greedy translations by the peer's own search."""
        longest = min(3 * batch.source.shape[1] + 20, 500)  # our limit; the network has 512 positions
        found = self.model.generate(
            input_ids=batch.source,
            attention_mask=source_mask(batch),
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=longest,
        )
        rows = [row[1:] for row in found.tolist()]  # without the begin symbol
        ends = [row.index(END) if END in row else len(row) for row in rows]
        return self.text.target_tokenizer.decode_batch([row[:end] for row, end in zip(rows, ends, strict=True)])

    def _save(self) -> None:
        """Replace the state on disk."""
        state = {
            "what": self._what,
            "progress": (self.step, self.seconds, self.validating),
            "position": self.stream.position,
            "random": torch.get_rng_state(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "recent": list(self.recent),
        }
        draft = self.file.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self.file)

    def _restore(self) -> tuple[int, int]:
        """Resume from the state on disk; returns the position in the text."""
        state = torch.load(self.file, weights_only=True)
        if state["what"] != self._what:
            raise SystemExit(f"{self.file}: was made with other text, sizes or recipe; choose a new --output")
        self.step, self.seconds, self.validating = state["progress"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.recent.extend(state["recent"])
        torch.set_rng_state(state["random"])
        epoch, index = state["position"]
        return epoch, index
