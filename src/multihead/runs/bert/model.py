"""A pre-trained BERT with its vocabulary, in memory and on disk.

    config.json            format version, sizes, SHA-256 of weights and words, parts that are missing
                           (`multihead.model_folder`)
    model.safetensors      the weights, including the heads of pre-training
    tokenizer.json         our subwords; or vocab.txt, the words of a published model
    tokenizer_config.json  settings of the tokenizer, for other programs
    metrics.json           what was measured

Folders of Hugging Face can be read and written, too; `models.bert.huggingface` maps names and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from multihead import model_folder
from multihead.configuration import require_device
from multihead.errors import FormatError, shown
from multihead.files import atomic_folder
from multihead.models.bert import huggingface
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.sealed import OpenFolder
from multihead.text.bert_words import BertWords, read_words


@dataclass(frozen=True)
class PretrainedBert:
    """A model and its vocabulary.

    Attributes:
        model: the network with all its heads.
        words: maps text to ids and back.
        missing: untrained parts of the model ("pooler", "words", "follows"), where a foreign folder lacks them; no
            folder that is written has them either.
    """

    model: Bert
    words: BertWords
    missing: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> PretrainedBert:
        """Read a model folder, the best model of a run folder, or a folder of Hugging Face.

        Raises:
            FormatError: the folder is none of these, is damaged, or holds another kind of network.
            ConfigurationError: the device does not exist.
        """
        require_device(device)
        # Weights that the files lack are drawn.
        with model_folder.open_model(Path(path)) as folder, torch.random.fork_rng(devices=[]):
            if huggingface.is_huggingface(folder.read_json(model_folder.CONFIG)):
                (model, missing), words = huggingface.read(folder), read_words(folder)
            else:
                model, words, missing = _read_model_folder(folder)
        if len(words) > model.config.vocab:
            raise FormatError(
                f"{folder.path}: {len(words)} words, but the model has {model.config.vocab}; {model_folder.COPY_AGAIN}"
            )
        return cls(model.eval().to(device), words, missing)

    def save(self, folder: Path, metrics: dict[str, Any] | None = None) -> None:
        """Write a model folder atomically; a model in its place is replaced.

        Raises:
            FormatError: the folder holds something other than a model; it is left alone.
            SurroundingsError: the folder cannot be written.
        """

        def parts(draft: Path) -> dict[str, Any]:
            self.words.save(draft)
            model_folder.write_json(draft / "metrics.json", metrics or {})
            return {"words": self.words.digest} | ({"missing": list(self.missing)} if self.missing else {})

        model_folder.save_folder(folder, _trained(self.model, self.missing), self.model.config, parts)

    def export(self, folder: str | Path) -> None:
        """Write a folder of Hugging Face atomically: BertForPreTraining, or another class if heads are missing.

        Raises:
            FormatError: the folder exists; nothing is overwritten.
            SurroundingsError: the folder cannot be written.
        """
        folder = Path(folder)
        if folder.exists():
            raise FormatError(f"{folder}: exists already, and is not overwritten; choose a new folder")
        with atomic_folder(folder) as draft:
            huggingface.write(draft, self.model, self.missing)
            self.words.save(draft)

    def rows(self, texts: Sequence[Sequence[int]]) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, " batch"]]:
        """The padded rows "[CLS] text [SEP]" and their lengths, as `Bert.encode` reads them."""
        symbols, device = self.words.symbols, self.model.pooler.weight.device
        rows = [torch.tensor([symbols.first, *ids, symbols.end]) for ids in texts]
        padded = pad_sequence(rows, batch_first=True, padding_value=symbols.pad)
        return padded.to(device), torch.tensor([len(row) for row in rows], device=device)


def _trained(model: Bert, missing: Collection[str]) -> nn.Module:
    """The parts of a model that are trained, under their names in it."""
    part = nn.Module()
    for name, module in model.named_children():
        if name not in missing:
            part.add_module(name, module)
    return part


def _read_model_folder(folder: OpenFolder) -> tuple[Bert, BertWords, tuple[str, ...]]:
    config = model_folder.read_config(folder)
    model_folder.require_architecture(folder, config, ("bert",), "BERT", "multihead pretrain")
    sizes = model_folder.parse_settings(BertConfig, config["model"], folder.path / model_folder.CONFIG)
    missing = config.get("missing", [])
    if not isinstance(missing, list) or any(name not in huggingface.OPTIONAL for name in missing):
        raise FormatError(
            f"{folder.path / model_folder.CONFIG}: damaged: missing is {shown(missing)}, not a list of parts that a "
            f"BERT may lack; {model_folder.COPY_AGAIN}"
        )
    built: list[Bert] = []

    def build() -> nn.Module:
        built.append(Bert(sizes))
        return _trained(built[-1], missing)

    model_folder.load_network(sizes, build, folder, config)
    words = read_words(folder)
    if words.digest != config.get("words"):
        raise FormatError(
            f"{folder.path}: these are not the words that this model was trained with (their SHA-256 is "
            f"{words.digest[:12]}..., config.json says {str(config.get('words'))[:12]}...); {model_folder.COPY_AGAIN}"
        )
    return built[-1], words, tuple(missing)
