"""Hostile folders: reading them costs no more than the length of their files justifies, and ends in a one-line error.

Each case plants one fault in a copy of a good folder and seals it again, as an attacker can do. The short form
loads the folders in this process, with an alarm. The long form (marker ``hostile``) runs the commands in processes of
their own, whose time and memory are limited, and changes every field of every file at random.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from folders import make_translator
from multihead.bundle import load_bundle
from multihead.errors import MultiheadError
from multihead.model_folder import WEIGHTS
from planting import (
    HANGS,
    KINDS,
    MEGABYTES,
    SECONDS,
    VALUES,
    Plant,
    Raw,
    alarm,
    change_fields,
    content,
    edit,
    header,
    little_memory,
    one_line,
    planted,
    replaced,
    tensor,
)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    make_translator(folder)
    return folder


# --------------------------------------------------------------------------- what is planted


def size(name: str, value: Any) -> Plant:
    return edit("config.json", "model", name, value=value)


def vocabularies(value: int) -> Plant:
    def plant(folder: Path) -> None:
        size("source_vocab", value)(folder)
        size("target_vocab", value)(folder)

    return plant


def search(name: str, value: Any) -> Plant:
    return edit("generation.json", name, value=value)


def pattern(expression: str) -> Plant:
    return edit("tokenizer.json", "pre_tokenizer", "pattern", "Regex", value=expression)


def foreign_tokenizer(**fields: Any) -> Plant:
    ids = {"pad": 0, "unk": 0, "bos": 0, "eos": 0}
    common = {"multihead_tokenizer": "hugging-face", "specials": ids, "control": [], "prefix": []}
    inner = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    whole = json.dumps({**common, "tokenizer": {"added_tokens": [], **inner}, "size": 1, **fields})
    return content("tokenizer.json", whole.encode())


DEEP = b"[" * 200_000
TABLE = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}

CASES: list[tuple[str, Plant, str]] = [
    ("vocabulary 1e9", vocabularies(10**9), r"config\.json: source_vocab: .*16777216, got 1000000000"),
    ("vocabulary 1e7", vocabularies(10**7), r"\[\d+, 16\] instead of \[10000000, 16\]"),
    ("width 40000", size("width", 40_000), r"model\.safetensors: .*\[\d+, 16\] instead of \[\d+, 40000\]"),
    ("width 1e18", size("width", 10**18), r"config\.json: width: "),
    ("inner 1e10", size("inner", 10**10), r"config\.json: inner: "),
    ("inner 1e6", size("inner", 10**6), r"model\.safetensors: .*instead of \[1000000, 16\]"),
    ("layers 1e5", size("encoder_layers", 10**5), r"config\.json: encoder_layers: "),
    ("layers 500", size("decoder_layers", 500), r"it has 501 layers, but there are 31 tensors"),
    ("heads 1e9", size("heads", 10**9), r"config\.json: heads: "),
    ("key_dim 60000", size("key_dim", 60_000), r"model\.safetensors: .*instead of"),
    ("positions 1e18", size("max_positions", 10**18), r"config\.json: max_positions: "),
    ("padding 1e18", size("padding_id", 10**18), r"config\.json: padding_id: "),
    ("width of 4000 digits", size("width", Raw("9" * 4000)), r"config\.json: width: .*999\.\.\."),
    ("width of 5000 digits", size("width", Raw("9" * 5000)), r"config\.json: damaged: not JSON"),
    ("width 1e999", size("width", Raw("1e999")), r"config\.json: width: "),
    ("a width of text", size("width", "x" * 10**6), r"config\.json: width: .*1,000,002 characters"),
    (
        "100000 settings",
        edit("config.json", "model", value={str(i): i for i in range(10**5)}),
        "100,000 unknown settings",
    ),
    ("min_length 1e9", search("min_length", 10**9), r"generation\.json: min_length: "),
    ("length_factor 1e18", search("length_factor", 10**18), r"generation\.json: length_factor: "),
    ("length_factor 1e308", search("length_factor", 1e308), r"generation\.json: length_factor: "),
    ("length_margin 1e12", search("length_margin", 10**12), r"generation\.json: length_margin: "),
    ("max_length 1e18", search("max_length", 10**18), r"generation\.json: max_length: "),
    ("beam 1e9", search("beam", 10**9), r"generation\.json: beam: "),
    ("alpha 1e300", search("alpha", 1e300), r"generation\.json: alpha: "),
    ("deep config", content("config.json", DEEP), r"config\.json: damaged: JSON of a depth"),
    ("deep search", content("generation.json", b'{"a":' * 200_000), r"generation\.json: damaged: JSON of a depth"),
    ("deep tokenizer", content("tokenizer.json", DEEP), r"tokenizer\.json: "),
    ("deep header", content(WEIGHTS, struct.pack("<Q", len(DEEP)) + DEEP), r"model\.safetensors: damaged"),
    (
        "deep, valid",
        edit("config.json", "x", value=Raw("[" * 500 + "]" * 500)),
        r"config\.json: damaged: JSON of a depth",
    ),
    ("pattern (x+x+)+y", pattern("(x+x+)+y"), r"tokenizer\.json: .*too many ways"),
    ("pattern x{1000}{1000}", pattern("(?:(?:x{1,999}){1,999}){1,999}"), r"tokenizer\.json: .*too many ways"),
    ("pattern of 2 MB", pattern("x" * (1 << 21)), r"tokenizer\.json: a pattern of 2,097,152 characters"),
    ("a table", edit("tokenizer.json", "normalizer", value=TABLE), r"tokenizer\.json: .*precompiled_charsmap"),
    (
        "an id of 1e18",
        edit("tokenizer.json", "model", "vocab", value={"a": 10**18}),
        r"tokenizer\.json: .*without gaps",
    ),
    ("foreign size 1e12", foreign_tokenizer(size=10**12), r"tokenizer\.json: .*ids up to 999,999,999,999"),
    ("foreign id 1e18", foreign_tokenizer(control=[10**18]), r"tokenizer\.json: a special symbol has the id"),
    ("100 GB", header({"a": tensor(0, 10**11, 25 * 10**9)}), r"model\.safetensors: damaged"),
    ("shape 1e18", header({"a": tensor(0, 64, 10**18)}), r"model\.safetensors: damaged"),
    ("overlapping", header({"a": tensor(0, 64, 16), "b": tensor(0, 64, 16)}), r"model\.safetensors: damaged"),
    ("gap", header({"a": tensor(32, 64, 8)}), r"model\.safetensors: damaged"),
    ("negative", header({"a": tensor(-64, 0, 16)}), r"model\.safetensors: damaged"),
    ("many axes", header({"a": tensor(0, 64, *[1] * 10**5, 16)}), r"model\.safetensors: (damaged|these)"),
    ("header 2**63", header({}, length=1 << 63), r"model\.safetensors: damaged"),
    ("other weights", header({"a": tensor(0, 64, 16)}), r"layers|these are not the weights"),
    *(
        (
            f"{kind} as {name}",
            replaced(name, make),
            name.replace(".", r"\.") if name != "config.json" else "config|model",
        )
        for kind, make in KINDS.items()
        for name in ("config.json", "generation.json", "tokenizer.json", WEIGHTS)
    ),
]
"""Name, the fault planted in a model folder, and the text of the error."""


@pytest.mark.parametrize(("name", "plant", "says"), CASES, ids=[name for name, *_ in CASES])
def test_what_is_planted_is_refused_in_one_line(
    translator: Path, tmp_path: Path, name: str, plant: Plant, says: str
) -> None:
    for sealed in (False,) if name.startswith("a ") else (True, False):
        folder = planted(translator, tmp_path / str(sealed), plant, sealed=sealed)
        with little_memory(), alarm(HANGS), pytest.raises(MultiheadError) as refused:
            load_bundle(folder)
        one_line(refused.value, says)


# --------------------------------------------------------------------------- folders of other programs


def marian(folder: Path, **settings: Any) -> None:
    """A folder that claims to be MarianMT's, with an embedding of eight rows."""
    from safetensors.torch import save_file

    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 8}.items()}  # fmt: skip
    ids = {"pad_token_id": 7, "decoder_start_token_id": 7, "eos_token_id": 0}
    config = {"model_type": "marian", "d_model": 4, "vocab_size": 8, "activation_function": "swish", **sides, **ids}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    (folder / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 7}))
    others = {f"model.{i}": torch.zeros(1) for i in range(9)}
    save_file({"model.shared.weight": torch.zeros(8, 4), **others}, folder / WEIGHTS)


def npz(folder: Path, vocabulary: str = "a: 0\n", **arrays: Any) -> None:
    """A folder that claims to be Marian's."""
    import numpy as np

    folder.mkdir()
    np.savez_compressed(folder / "model.npz", **arrays)
    (folder / "vocab.yml").write_text(vocabulary)


def joey(folder: Path, settings: str) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(settings)
    for name in ("src_vocab.txt", "trg_vocab.txt", "best.ckpt"):
        (folder / name).write_text("a\n")


def zeros(folder: Path) -> None:
    import numpy as np

    npz(folder, **{f"a{i}": np.zeros(1 << 17) for i in range(64)})


def pipes(folder: Path) -> None:
    marian(folder)
    (folder / "source.spm").write_bytes(b"")
    replaced("source.spm", os.mkfifo)(folder)


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))

FOREIGN: list[tuple[str, Plant, str]] = [
    ("vocabulary 1e9", lambda folder: marian(folder, vocab_size=10**9), r"config\.json: source_vocab: "),
    ("vocabulary 1e7", lambda folder: marian(folder, vocab_size=10**7), r"vocab\.json: .*ids up to 9,999,999"),
    ("layers 1e5", lambda folder: marian(folder, encoder_layers=10**5), r"config\.json: encoder_layers: "),
    ("layers 500", lambda folder: marian(folder, encoder_layers=500), r"501 layers, but there are 10 weights"),
    ("width of text", lambda folder: marian(folder, d_model="x" * 10**6), r"config\.json: width: "),
    ("inner 1e18", lambda f: marian(f, encoder_ffn_dim=10**18, decoder_ffn_dim=10**18), r"config\.json: inner: "),
    ("a pipe as source.spm", pipes, r"tokenizer|spm|vocabulary"),
    ("an npz of zeros", zeros, r"model\.npz: .*its parts claim 67,"),
    ("deep YAML", lambda folder: joey(folder, "[" * 200_000), r"config\.yaml: YAML with more than 50 levels"),
    ("aliases", lambda folder: joey(folder, ALIASES), r"config\.yaml: YAML with more than 20 aliases"),
    ("long YAML", lambda folder: joey(folder, "a: " + "x" * (1 << 21)), r"config\.yaml: has 2,097,155 characters"),
]


@pytest.mark.parametrize(("name", "make", "says"), FOREIGN, ids=[name for name, *_ in FOREIGN])
def test_folders_of_other_programs_are_refused_in_one_line(tmp_path: Path, name: str, make: Plant, says: str) -> None:
    make(tmp_path / "folder")
    with alarm(HANGS), pytest.raises(MultiheadError) as refused:
        load_bundle(tmp_path / "folder")
    one_line(refused.value, says)


# --------------------------------------------------------------------------- every field


def read_or_refuse(folder: Path, seconds: float) -> bool:
    """Whether a folder is read; any error other than one of our one-line errors fails the test."""
    try:
        with alarm(seconds):
            load_bundle(folder)
    except MultiheadError as error:
        one_line(error, "")
        return False
    return True


def fuzz(good: Path, work: Path, seed: int) -> bool:
    """Change one file of a folder, and read it."""
    draw = random.Random(seed)
    folder = planted(good, work, lambda _: None, sealed=False)
    name = draw.choice(["config.json", "config.json", "generation.json", "tokenizer.json", WEIGHTS])
    change_fields(folder / name, draw)
    if name == WEIGHTS:
        edit("config.json", "weights", value=None)(folder)
    return read_or_refuse(folder, HANGS)


def test_fields_changed_at_random(translator: Path, tmp_path: Path) -> None:
    read = [fuzz(translator, tmp_path / str(seed), seed) for seed in range(40)]
    assert not all(read)


@pytest.mark.hostile
def test_fields_changed_at_random_for_long(translator: Path, tmp_path: Path) -> None:
    read = 0
    for seed in range(1000, 4000):
        read += fuzz(translator, tmp_path / "folder", seed)
        shutil.rmtree(tmp_path / "folder")
    assert 0 < read < 2500


SETTINGS_CLASSES = [
    ("multihead.models.config", "TransformerConfig", {"source_vocab": 8, "target_vocab": 8}),
    ("multihead.models.config", "RecurrentConfig", {"source_vocab": 8, "target_vocab": 8}),
    ("multihead.models.bert.config", "BertConfig", {"vocab": 8}),
    ("multihead.models.classifier.config", "HierarchicalConfig", {"vocab": 8, "classes": 2}),
    ("multihead.models.pointer.config", "PointerConfig", {}),
    ("multihead.training.config", "TrainingConfig", {"updates": 10}),
    ("multihead.decoding.search", "Search", {}),
    ("multihead.translating.request", "Sampling", {}),
    ("multihead.planning.settings", "TrainSettings", {}),
    ("multihead.runs.pointer.settings", "PointerSettings", {}),
    ("multihead.runs.classifier.settings", "ClassifySettings", {}),
    ("multihead.runs.bert.settings", "PretrainSettings", {}),
]


@pytest.mark.parametrize(("module", "name", "usual"), SETTINGS_CLASSES, ids=[name for _, name, _ in SETTINGS_CLASSES])
def test_every_setting_takes_a_value_or_names_itself(module: str, name: str, usual: dict[str, Any]) -> None:
    """All values in all fields; numbers above 2**63, and numbers that JSON does not have, are refused."""
    from importlib import import_module

    from multihead.configuration import build

    cls = getattr(import_module(module), name)
    for field in cls.model_fields:
        # settings that users may leave open are checked when they are resolved; any number is a seed of samples
        open_ended = "settings" in module or (name, field) == ("Sampling", "seed")
        for value in VALUES:
            try:
                found = getattr(build(cls, {**usual, field: value}, "a file"), field)
            except MultiheadError as error:
                one_line(error, "^a file: ")
            else:
                assert open_ended or not (isinstance(found, int) and abs(found) >= 2**63), (field, value)


# --------------------------------------------------------------------------- commands in processes of their own


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit status, its messages, processor time and peak memory."""

    status: int
    said: str
    seconds: float
    megabytes: float


def run(work: Path, *words: object) -> Ended:
    """Run a command; it is killed after a minute."""
    with (work / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "multihead", *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, cwd=work,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while (found := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.01)
    process.returncode = os.waitstatus_to_exitcode(found[1])
    usage = found[2]
    text = (work / "said").read_text(encoding="utf-8", errors="replace")
    return Ended(process.returncode, text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


COMMANDS: dict[str, tuple[object, ...]] = {
    "translate": ("translate", "MODEL"),
    "serve": ("serve", "MODEL", "--port", "0"),
    "evaluate": ("evaluate", "MODEL", "--source", "text", "--target", "text"),
    "explain": ("explain", "MODEL", "a"),
    "score": ("score", "MODEL", "--source", "text", "--target", "text"),
    "align": ("align", "MODEL", "--source", "text", "--target", "text"),
    "average": ("average", "MODEL", "MODEL", "--output", "out"),
    "quantise": ("quantise", "MODEL", "--output", "out"),
    "export": ("export", "MODEL", "--format", "transformers", "--output", "out"),
    "import": ("import", "MODEL", "--output", "out"),
    "fine-tune": ("train", "--from-model", "MODEL", "--source", "text", "--target", "text", "--output", "out"),
    "classify": ("classify", "predict", "MODEL"),
    "fill-mask": ("fill-mask", "MODEL", "a [MASK]"),
    "generate": ("generate", "MODEL", "a"),
}
TRIED = ("vocabulary 1e9", "width 40000", "layers 500", "deep config", "a pipe as config.json", "overlapping")
OF_OTHER_NETWORKS = ("classify", "fill-mask", "generate")
OF_TRANSLATORS = ("min_length 1e9", "pattern (x+x+)+y", "a pipe as generation.json", "a device as tokenizer.json")


@pytest.mark.hostile
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_end_at_once(translator: Path, tmp_path: Path, command: str) -> None:
    """Processor time and peak memory are compared with those of a command that reads a good folder, with PyTorch."""
    (tmp_path / "text").write_text("a\n" * 40)
    words = COMMANDS[command]
    usual = run(tmp_path, "score", translator, "--source", "text", "--target", "text")
    assert usual.status == 0, usual
    cases = {name: (plant, says) for name, plant, says in CASES}
    other = command in OF_OTHER_NETWORKS
    for number, name in enumerate((*TRIED, *(() if other else OF_TRANSLATORS))):
        plant, says = cases[name]
        folder = planted(translator, tmp_path / str(number), plant, sealed=False)
        before = sorted(path.name for path in tmp_path.iterdir())
        found = run(tmp_path, *(folder if word == "MODEL" else word for word in words))
        lines = found.said.splitlines()
        assert found.status == 2, (name, found)
        assert lines[-1].startswith("multihead: "), (name, found)
        assert re.search(f"{says}|the network in it is 'transformer'" if other else says, lines[-1]), (name, found)
        assert len(lines) <= (3 if command == "serve" else 2), (name, found)  # a server logs it, too
        assert "Traceback" not in found.said
        assert found.seconds < usual.seconds + SECONDS, (name, found, usual)
        assert found.megabytes < usual.megabytes + MEGABYTES, (name, found, usual)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
