"""`LanguageModel`: score and continue texts with a trained model.

    config.json            format version, sizes, how texts are read, SHA-256 of weights and subwords
    model.safetensors      the weights
    tokenizer.json         the subwords
    metrics.json           what was measured
    README.md              a model card

Training is in `runs.language_model.train`. A text of more tokens than the model reads at once is scored in windows
(`data.texts`): each token after those of its window, as in training. Of a long prompt the last tokens are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multihead import model_folder
from multihead.configuration import require_device
from multihead.data.order import batches_by_tokens
from multihead.data.texts import windows
from multihead.decoding.hypothesis import Hypothesis, refuse_nan
from multihead.decoding.sampling import sample
from multihead.decoding.search import Search
from multihead.decoding.sharpening import Sharpening
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, FormatError, InputError
from multihead.judging.score import ScoredPair
from multihead.models.decoder.config import DecoderConfig
from multihead.models.decoder.network import DecoderLM
from multihead.runs.language_model.generation import Generation
from multihead.runs.language_model.settings import Reading
from multihead.runs.language_model.text import TOKENIZER
from multihead.text.tokenizer import Tokenizer
from multihead.translating.forced import token_log_probabilities
from multihead.translating.searching import search_batch, symbols_of

_ARCHITECTURE = "decoder"


def holds_language_model(path: Path) -> bool:
    """Whether a folder is a model or run folder of a language model; what else it may be is not checked."""
    try:
        with model_folder.open_model(path) as folder:
            return model_folder.architecture_of(model_folder.read_config(folder)) == _ARCHITECTURE
    except FormatError:
        return False


class LanguageModel:
    """A trained language model with its subwords.

    Args:
        model: the network.
        tokenizer: its subwords.
        reading: how it reads texts.

    Example:
        ``LanguageModel.load("run").generate(["A dog"])[0]`` is a text that begins with ``"A dog"``
    """

    def __init__(self, model: DecoderLM, tokenizer: Tokenizer, reading: Reading) -> None:
        self.model, self.tokenizer, self.reading = model, tokenizer, reading

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> LanguageModel:
        """Read a model folder, or the best model of a run folder.

        Raises:
            FormatError: the folder is neither, is damaged, or holds another kind of network.
            ConfigurationError: the device does not exist.
        """
        require_device(device)
        with model_folder.open_model(Path(path)) as folder:
            config = model_folder.read_config(folder)
            model_folder.require_architecture(
                folder, config, (_ARCHITECTURE,), "language model", "multihead train --model decoder"
            )
            file = folder.path / model_folder.CONFIG
            reading = model_folder.parse_settings(Reading, config.get("reading"), file)
            sizes = model_folder.parse_settings(DecoderConfig, config["model"], file)
            tokenizer = Tokenizer.read(folder, TOKENIZER)
            if tokenizer.digest != config.get("tokenizer") or len(tokenizer) != sizes.vocab:
                raise FormatError(
                    f"{folder.path / TOKENIZER}: not the tokenizer that this model was trained with; "
                    f"{model_folder.COPY_AGAIN}"
                )
            model = model_folder.load_network(sizes, lambda: DecoderLM(sizes), folder, config)
        return cls(model.eval().to(device), tokenizer, reading)

    def save(self, folder: Path, metrics: dict[str, Any], made_by: str = "") -> None:
        """Write a model folder atomically; a model in its place is replaced.

        Args:
            folder: the folder.
            metrics: scores for metrics.json and the card.
            made_by: a sentence on the model's origin, for the card.

        Raises:
            FormatError: the folder holds something other than a model; it is left alone.
            SurroundingsError: the folder cannot be written.
        """

        def parts(draft: Path) -> dict[str, Any]:
            self.tokenizer.save(draft / TOKENIZER)
            model_folder.write_json(draft / "metrics.json", metrics)
            (draft / "README.md").write_text(self._card(metrics, made_by), encoding="utf-8", newline="\n")
            return {"tokenizer": self.tokenizer.digest, "reading": self.reading.model_dump(mode="json")}

        model_folder.save_folder(folder, self.model, self.model.config, parts)

    def score(
        self,
        texts: Sequence[str],
        *,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[ScoredPair]:
        """log p(y_t | y_<t) of each token of each text and of its end symbol.

        A text of nothing but white space has no tokens and the score 0, as in `judging.score`.

        Args:
            texts: a text per item.
            batch_tokens: maximum number of padded tokens of a batch.
            progress: called with the number of newly scored texts, whose total is that of all texts at the end.

        Raises:
            InputError: one string instead of a list of them, or a text contains a lone surrogate.
            ConfigurationError: ``batch_tokens`` is below 1.
            MultiheadError: the model computed NaN.
        """
        _check(texts, batch_tokens)
        encoded = self.tokenizer.encode_batch(texts)
        cut = [windows(ids, self.tokenizer, self.reading.max_tokens) for ids in encoded]
        cut = [rows if text.strip() else [] for text, rows in zip(texts, cut, strict=True)]
        values = self._log_probabilities([row for rows in cut for row in rows], batch_tokens)
        results, first = [], 0
        for ids, rows in zip(encoded, cut, strict=True):
            found = [value for own in values[first : first + len(rows)] for value in own]
            first += len(rows)
            symbols = [*ids, self.tokenizer.eos_id] if rows else []
            results.append(ScoredPair(self.tokenizer.pieces(symbols), found))
        progress(len(texts))
        return results

    @torch.no_grad()
    def _log_probabilities(self, rows: Sequence[list[int]], batch_tokens: int) -> list[list[float]]:
        """log p of all tokens of each window but the first."""
        found: list[list[float]] = [[]] * len(rows)
        for places in batches_by_tokens([len(row) - 1 for row in rows], batch_tokens):
            tokens, lengths = self._padded([rows[place] for place in places])
            real = torch.arange(tokens.shape[1] - 1, device=tokens.device) < lengths[:, None] - 1
            states = self.model.eval().hidden(tokens[:, :-1])
            values = token_log_probabilities(states[real], self.model.output, tokens[:, 1:][real])
            refuse_nan(float(values.sum()))
            rest = iter(values.tolist())
            for place in places:
                found[place] = list(islice(rest, len(rows[place]) - 1))
        return found

    def generate(
        self,
        prompts: Sequence[str],
        generation: Generation | None = None,
        *,
        keys: Sequence[int] | None = None,
        batch_tokens: int = 4096,
        progress: Callable[[int], None] = lambda _: None,
        **settings: Any,
    ) -> list[str]:
        """Continue prompts: each is followed by the text that the model writes, up to its end symbol or the limit.

        White space at the end of a prompt is left out, since the next word brings its own.

        Args:
            prompts: the beginnings; an empty one is that of any text.
            generation: how to search or draw; by default greedily.
            keys: a number for each prompt, so that it draws the same random numbers in any batch; by default its place.
            batch_tokens: maximum number of padded tokens of a batch, those to come and all hypotheses counted.
            progress: called with the number of newly finished prompts.
            **settings: fields of `Generation`, in place of ``generation``.

        Raises:
            InputError: one string instead of a list of them, or a prompt contains a lone surrogate.
            ConfigurationError: an impossible setting.
        """
        _check(prompts, batch_tokens)
        how = Generation(**settings) if generation is None else generation
        search = how.search(self.reading.max_tokens)
        assert search.max_length is not None
        encoded = self.tokenizer.encode_batch([prompt.rstrip() for prompt in prompts])
        room = self.reading.max_tokens - search.max_length
        begun = [[self.tokenizer.bos_id, *ids][-room:] for ids in encoded]
        results = [""] * len(prompts)
        budget = max(batch_tokens // how.beam, 1)
        for places in batches_by_tokens([len(ids) + search.max_length for ids in begun], budget):
            own = None if keys is None else [keys[place] for place in places]
            found = self._continue([begun[place] for place in places], how, search, places if own is None else own)
            for place, hypothesis in zip(places, found, strict=True):
                results[place] = self.tokenizer.decode([*encoded[place], *hypothesis.tokens])
            progress(len(places))
        return results

    @torch.no_grad()
    def _continue(
        self, begun: Sequence[list[int]], how: Generation, search: Search, keys: Sequence[int]
    ) -> list[Hypothesis]:
        """The continuation of each beginning."""
        source, model = self._padded(begun), self.model.eval()
        task = SearchTask(symbols_of(self.tokenizer), search.max_length, search.min_length)
        if how.sample:
            sharpening = Sharpening(**how.sharpening)
            found = sample(model, *source, task, search, seed=how.seed, keys=keys, sharpening=sharpening)
        else:
            found = search_batch(model, *source, task, search)
        return [hypotheses[0] for hypotheses in found]

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, " batch"]]:
        device = self.model.output.weight.device
        padded = pad_sequence([torch.tensor(row) for row in rows], True, self.tokenizer.pad_id)
        return padded.to(device), torch.tensor([len(row) for row in rows], device=device)

    def _card(self, metrics: dict[str, Any], made_by: str) -> str:
        """The model card: README.md of a model folder."""
        size = sum(p.numel() for p in self.model.parameters())
        shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in metrics.items()}
        measured = "\n".join(f"| {name} | {text} |" for name, text in shown.items())
        return (
            f"# Language model\n\n{made_by}\n\n"
            f"{self.model.config.summary}, {size:,} parameters; byte-pair encoding of {len(self.tokenizer)} entries, "
            f"{self.reading.max_tokens} tokens at once.\n\n"
            "```python\nfrom multihead.runs.language_model.model import LanguageModel\n\n"
            'print(LanguageModel.load(".").generate(["..."])[0])\n```\n\n'
            f"| measured | |\n|---|---|\n{measured}\n"
        )


def _check(texts: Sequence[str], batch_tokens: int) -> None:
    if isinstance(texts, str):
        raise InputError("expected a list of texts, got one string; write [text]")
    if batch_tokens < 1:
        raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
