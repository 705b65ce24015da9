"""transformers.js loads the ONNX folders and finds our tokens and translations, in node.

It runs if the environment variable MULTIHEAD_TRANSFORMERS_JS names a folder in which
``npm install --ignore-scripts @huggingface/transformers`` was called.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multihead.interop.formats import onnx
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.onnxruntime import open_folder

INSTALLED = os.environ.get("MULTIHEAD_TRANSFORMERS_JS")

pytestmark = pytest.mark.skipif(
    INSTALLED is None or shutil.which("node") is None,
    reason="MULTIHEAD_TRANSFORMERS_JS names no folder with transformers.js, or there is no node",
)

PROGRAM = """
const { createRequire } = require('node:module');
const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = createRequire(process.argv[1] + '/')('@huggingface/transformers');
const [, folder, name, dtype, lines] = process.argv.slice(1);
env.allowRemoteModels = false;
env.localModelPath = folder;
(async () => {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModelForSeq2SeqLM.from_pretrained(name, { dtype });
  const found = [];
  for (const line of JSON.parse(lines)) {
    const inputs = tokenizer(line);
    const ids = await model.generate({ ...inputs, num_beams: 1, max_new_tokens: 12 });
    const text = tokenizer.batch_decode(ids, { skip_special_tokens: true })[0];
    found.push([inputs.input_ids.tolist()[0].map(Number), ids.tolist()[0].map(Number), text]);
  }
  console.log(JSON.stringify(found));
})();
"""


def check(parts: TranslatorParts, folder: Path, lines: list[str], quantization: str = "float32") -> None:
    """Source ids, translations and texts are equal."""
    onnx.write(parts, folder, quantization)
    dtype = {"float32": "fp32", "int8": "q8"}[quantization]
    found = subprocess.run(
        ["node", "-e", PROGRAM, str(INSTALLED), str(folder.parent) + "/", folder.name, dtype, json.dumps(lines)],
        capture_output=True,
        text=True,
        check=True,
    )
    target = parts.target_tokenizer
    sources = [[*ids, target.eos_id] for ids in parts.source_tokenizer.encode_batch(lines)]
    search = parts.generation.model_copy(update={"beam": 1, "max_length": 12, "min_length": 0})
    if quantization == "int8":  # what is rounded depends on the other sentences of a batch
        runtime = open_folder(folder, parts, quantization)
        rows = [runtime.translate([source], search)[0] for source in sources]
    else:
        forbidden = tuple(i for i in target.forbidden_in_output if i not in target.prefix)  # as generation_config.json
        rows = OurSide(parts).translate(sources, Rules(search, forbidden))
    assert json.loads(found.stdout.splitlines()[-1]) == [
        [source, [target.bos_id, *row], target.decode(row)] for source, row in zip(sources, rows, strict=True)
    ]


@pytest.mark.parametrize("quantization", onnx.QUANTIZATIONS)
def test_ours(make_parts: Callable[..., TranslatorParts], tmp_path: Path, quantization: str) -> None:
    lines = ["Ein Hund rennt.", "Zwei Hunde rennen!", "12 Bälle im ▁ Park", "日本"]
    check(make_parts(norm="pre"), tmp_path, lines, quantization)


@pytest.mark.parametrize("kind", ["marian", "m2m100", "nllb", "mbart50"])
def test_imported(foreign: Any, tmp_path: Path, kind: str) -> None:
    languages = {"m2m100": ("de", "en"), "nllb": ("deu_Latn", "eng_Latn"), "mbart50": ("de_DE", "en_XX")}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    getattr(foreign, kind)(first)
    check(read_foreign(first, Languages(*languages.get(kind, (None, None)))), second, foreign.sentences(6))
