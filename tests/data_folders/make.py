"""Makes a tiny model folder of the current format version, to stay in the tests for ever: see README.md here."""

import random
import shutil
import tempfile
from pathlib import Path

from multihead import train
from multihead.bundle import FORMAT_VERSION

HERE = Path(__file__).resolve().parent
WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
SENTENCES = ["zwei eins", "fünf drei vier", "", "sechs eins"]


def main() -> None:
    """Trains for some seconds and writes ``v<version>/``, ``v<version>.source.txt`` and ``v<version>.target.txt``."""
    draw = random.Random(1)
    rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 4))] for _ in range(1000)]
    with tempfile.TemporaryDirectory() as folder:
        files = {"source": Path(folder, "train.de"), "target": Path(folder, "train.en")}
        files["source"].write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
        files["target"].write_text("".join(" ".join(map(WORDS.get, row)) + "\n" for row in rows), encoding="utf-8")
        sizes = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 300}
        pace = {"updates": 800, "learning_rate": 0.02, "warmup": 20, "validate_every": 250, "threads": 1}
        plain = {"dropout": 0.0, "smoothing": 0.0, "precision": "float32", "batch_tokens": 512}
        result = train(output=Path(folder, "run"), **files, **sizes, **pace, **plain)
        target = HERE / f"v{FORMAT_VERSION}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(result.folder / "best", target)
        translated = result.translator().translate(SENTENCES)
    for side, lines in (("source", SENTENCES), ("target", translated)):
        target.with_name(f"{target.name}.{side}.txt").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
