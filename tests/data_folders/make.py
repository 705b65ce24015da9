"""Makes a tiny model folder of the current format version, which the tests keep forever: see README.md here."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multihead import Translator
from multihead.bundle import FORMAT_VERSION, Bundle, save_bundle
from multihead.data.batching import collate
from multihead.data.store import ParallelStore
from multihead.decoding.search import Search
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step

HERE = Path(__file__).resolve().parent
WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
SENTENCES = ["zwei eins", "fünf drei vier", "", "sechs eins"]

NETWORK = {
    "tie_embeddings": False,
    "width": 12,
    "heads": 2,
    "inner": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "feed_forward": "silu",
    "sinusoid": "fairseq",
    "output_bias": True,
    "source_end": False,
    "dropout": 0.05,
}
"""Since version 5: settings of the Transformer for models of other programs."""
RELATIVE = {
    "width": 12,
    "heads": 2,
    "inner": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "tie_embeddings": False,
    "feed_forward_bias": False,
    "positions": "relative",
    "relative_buckets": 6,
    "relative_distance": 20,
    "norm": "pre",
    "norm_kind": "rms",
}
"""New in version 5, too: settings that exclude some of the others."""
SEARCH = Search(beam=3, alpha=0.7, min_length=1, max_length=30)
TRAINING = TrainingConfig(updates=1500, learning_rate=0.01, warmup=50, smoothing=0.0)


def learned(settings: dict[str, Any]) -> Bundle:
    """A model that has just learned the number words."""
    draw = random.Random(1)
    rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 4))] for _ in range(1000)]
    texts = ([" ".join(row) for row in rows], [" ".join(WORDS[word] for word in row) for row in rows])
    source, target = (Tokenizer.learn(text, size) for text, size in zip(texts, (290, 295), strict=True))
    store = ParallelStore.from_lists(source.encode_batch(texts[0]), target.encode_batch(texts[1]))
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(source_vocab=len(source), target_vocab=len(target), **settings))
    optimizer = build_optimizer(model, TRAINING)
    for step in range(1, TRAINING.updates + 1):
        pairs = np.array(draw.sample(range(len(rows)), 32))
        batch = collate(store, pairs, pad_id=source.pad_id, bos_id=source.bos_id, eos_id=source.eos_id)
        rate = learning_rate(TRAINING, step, model.config.width)
        sums = train_step(model, optimizer, [batch], TRAINING, step, rate)
    print(f"loss at the end: {sums.nll / sums.tokens:.3f}")
    return Bundle(model.eval(), source, target, SEARCH, "de", "en")


def main() -> None:
    """Trains for some seconds and writes ``v<version>/``, ``v<version>.source.txt`` and ``v<version>.target.txt``."""
    torch.set_num_threads(1)
    for name, settings in ((f"v{FORMAT_VERSION}", NETWORK), (f"v{FORMAT_VERSION}-relative", RELATIVE)):
        folder = HERE / name
        if folder.exists():
            continue  # written once
        save_bundle(folder, learned(settings), {}, "Made by tests/data_folders/make.py.")
        translated = Translator.load(folder).translate(SENTENCES)
        for side, lines in (("source", SENTENCES), ("target", translated)):
            folder.with_name(f"{name}.{side}.txt").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
