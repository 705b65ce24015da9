"""COMET's process: reads texts as lines of JSON, writes scores

`metrics.comet` runs it by the Python that has COMET, which may be an older one than ours and has nothing of ours: it
imports COMET and the standard library alone.

    python comet_program.py MODEL GPUS      MODEL: a checkpoint file, or a name that COMET downloads
    -> {"version": "2.2.7"}                 when the model is loaded
    <- {"source": [...], "translation": [...], "reference": [...]}
    -> {"scores": [...]}
    -> {"error": "...", "at": "import" | "model" | "scores"}    in place of an answer

It ends with its input, or with the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import IO, Any

_BATCH = 16
"""Sentences of a batch: COMET's own number."""
_WATCH = 0.5
"""Seconds between two looks at the process that started this one."""


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that started this one
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if path != here]  # whose comet.py is not COMET
    name, gpus, at = sys.argv[1], int(sys.argv[2]), "import"
    try:
        import comet  # type: ignore[import-not-found]

        at = "model"
        model = comet.load_from_checkpoint(name if os.path.exists(name) else comet.download_model(name))  # noqa: PTH110
        _write(answers, {"version": str(getattr(comet, "__version__", "unknown"))})
        at = "scores"
        for line in sys.stdin:
            texts = json.loads(line)
            names = {"src": "source", "mt": "translation", "ref": "reference"}
            count = len(texts["source"])
            samples = [{short: texts[name][i] for short, name in names.items()} for i in range(count)]
            found = model.predict(samples, batch_size=_BATCH, gpus=gpus, progress_bar=False)
            _write(answers, {"scores": [float(score) for score in found.scores]})
    except Exception as error:
        _write(answers, {"error": f"{type(error).__name__}: {error}", "at": at})
        sys.exit(1)


def _write(answers: IO[str], content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, also in the middle of an answer."""
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)


if __name__ == "__main__":
    main()
