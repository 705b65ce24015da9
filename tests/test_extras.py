"""Optional packages: a feature whose package is missing or broken names the extra that installs it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from floors import PROJECT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from multihead.attention.drawing import plot_grid
from multihead.cleaning.outputs import open_output
from multihead.cli.serve import _check_packages
from multihead.data.readers import scan_corpus
from multihead.data.text_files import scan
from multihead.data.toy.numbers import Writer
from multihead.decoding.search import Search
from multihead.errors import MissingDependencyError, require_package
from multihead.inspection.fonts import default_font
from multihead.interop.formats import ctranslate2, onnx_graph, sentence_ends, sentencepiece, yaml_files
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.hub import model_folder_of
from multihead.interop.runtimes import browser, onnxruntime, transformers
from multihead.interop.runtimes import ctranslate2 as ctranslate2_runtime
from multihead.interop.runtimes import sentencepiece as spm_runtime
from multihead.lines import translation_tables
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.shards import ray_engine, storage
from multihead.text import detection
from multihead.text.preparation import Preparation
from multihead.text.sentencepiece import open_model
from multihead.text.tokenizer import Tokenizer
from multihead.training.tensorboard import require_tensorboard

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "multihead"

MODULES = {"google": "protobuf", "yaml": "pyyaml"}
"""Packages whose modules have another name."""

EXTRAS: dict[str, set[str]] = {
    extra: {canonicalize_name(Requirement(line).name) for line in lines}
    for extra, lines in PROJECT["project"]["optional-dependencies"].items()
}

OWN = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}

CHECKED_BEFORE = {
    "serving": "`multihead serve` checks the packages of the server first",
    "attention/drawing.py": "`plot_grid` checks first; its helpers draw on what it returns",
    "inspection/curves.py": "`plots.check_path` and `fonts.default_font` come first",
    "inspection/fonts.py": "`default_font` comes first",
    "inspection/plots.py": "`fonts.Fonts` comes first",
    "data/toy/numbers.py": "`Writer` checks when it is made",
    "data/parquet_files.py": "`opened` checks when the file is opened",
    "inspection/huggingface.py": "it is asked about a model of transformers only",
    "interop/formats/yaml_files.py": "`_Parser` checks when it is made",
    "interop/runtimes/browser.py": "`_headless` checks before it starts a browser",
    "interop/runtimes/onnxruntime.py": "`OnnxStepper` checks when it is made",
    "interop/runtimes/transformers.py": "`TransformersRuntime` checks when it is made",
    "shards/ray_engine.py": "`_import_ray` comes first; the others run on a cluster",
}
"""Places that import packages without a check, since an earlier place checks."""

FALLBACKS = {"interop/formats/argos.py": "without babel a language is named by its code"}


class Check(NamedTuple):
    """A call of `require_package`."""

    file: str
    module: str
    extra: str


@cache
def optional() -> dict[str, set[str]]:
    """The modules of optional packages, each with the extras that install it."""
    names = {package: module for module, package in MODULES.items()}
    found: dict[str, set[str]] = {}
    for extra, packages in EXTRAS.items():
        for package in packages - OWN if extra != "dev" else ():
            found.setdefault(names.get(package, package.replace("-", "_")), set()).add(extra)
    return found


def functions(tree: ast.AST) -> Iterator[list[ast.AST]]:
    """The nodes of each function, without those of functions in it, and those outside of functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        nodes, inside = [], [*ast.iter_child_nodes(waiting.pop())]
        while inside:
            node = inside.pop(0)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                waiting.append(node)
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            nodes.append(node)
            inside += ast.iter_child_nodes(node)
        yield sorted((node for node in nodes if hasattr(node, "lineno")), key=lambda node: node.lineno)


def checks_in(nodes: list[ast.AST], file: str) -> list[Check]:
    """The calls of `require_package`; of a loop over names, one for each name."""
    found, looped = [], [node for node in nodes if isinstance(node, ast.For)]
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require_package":
            module, extra = node.args[:2]
            assert isinstance(extra, ast.Constant)
            if isinstance(module, ast.Constant):
                names = [module.value]
            else:
                name = ast.unparse(module)
                (names,) = [ast.literal_eval(loop.iter) for loop in looped if ast.unparse(loop.target) == name]
            found += [Check(file, name, extra.value) for name in names]
    return found


@cache
def parsed() -> list[tuple[str, list[ast.AST]]]:
    """The statements of each function that may import an optional package or check for one, with its file."""
    words = re.compile(rf"require_package|(import|from) ({'|'.join(optional())})\b")
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        (path.relative_to(PACKAGE).as_posix(), nodes)
        for path, text in texts.items()
        if words.search(text)
        for nodes in functions(ast.parse(text))
    ]


@cache
def all_checks() -> list[Check]:
    return [check for file, nodes in parsed() for check in checks_in(nodes, file)]


def imported(nodes: list[ast.AST]) -> set[str]:
    """The packages that the statements import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_no_optional_package_is_imported_unchecked() -> None:
    unchecked = set()
    for file, nodes in parsed():
        checked = {check.module.partition(".")[0] for check in checks_in(nodes, file)}
        if (imported(nodes) & optional().keys()) - checked:
            unchecked.add("serving" if file.startswith("serving/") else file)
    assert unchecked == CHECKED_BEFORE.keys() | FALLBACKS.keys()


def test_every_check_names_an_extra_that_installs_the_package() -> None:
    known = optional()
    wrong = [check for check in all_checks() if check.extra not in known.get(check.module.partition(".")[0], ())]
    assert wrong == []


# --------------------------------------------------------------------------- without the package


@pytest.fixture(scope="module")
def parts() -> TranslatorParts:
    tokenizer = Tokenizer.learn(["ein Hund"] * 2, 270)
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer))
    return TranslatorParts(config, {}, tokenizer, tokenizer, Search())


def open_compressed(folder: Path, _parts: TranslatorParts) -> None:
    (folder / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    scan(folder / "a.zst")


def write_compressed(folder: Path, _parts: TranslatorParts) -> None:
    with open_output(folder / "a.zst"):
        pass


def open_table(folder: Path, _parts: TranslatorParts) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1")
    scan_corpus(folder / "a.parquet")


def detect(_folder: Path, _parts: TranslatorParts) -> None:
    detection._identifier.__wrapped__(None)


USES: dict[tuple[str, str], Callable[[Path, TranslatorParts], Any]] = {
    ("attention/drawing.py", "matplotlib"): lambda _, __: plot_grid([[True]]),
    ("cleaning/outputs.py", "zstandard"): write_compressed,
    ("cli/serve.py", "fastapi"): lambda _, __: _check_packages(),
    ("cli/serve.py", "httptools"): lambda _, __: _check_packages(),
    ("cli/serve.py", "prometheus_client"): lambda _, __: _check_packages(),
    ("cli/serve.py", "python_multipart"): lambda _, __: _check_packages(),
    ("cli/serve.py", "uvicorn"): lambda _, __: _check_packages(),
    ("data/parquet_files.py", "pyarrow"): open_table,
    ("data/text_files.py", "zstandard"): open_compressed,
    ("data/toy/numbers.py", "babel"): lambda _, __: Writer("de"),
    ("inspection/fonts.py", "matplotlib"): lambda _, __: default_font(),
    ("interop/formats/ctranslate2.py", "ctranslate2"): lambda _, parts: ctranslate2.specification(
        Transformer(parts.config)
    ),
    ("interop/formats/onnx_graph.py", "onnx"): lambda _, __: onnx_graph.import_onnx(),
    ("interop/formats/sentence_ends.py", "onnx"): lambda _, __: sentence_ends.sentence_model("en"),
    ("interop/formats/sentencepiece.py", "sentencepiece"): lambda _, __: sentencepiece.parse_model(b""),
    ("interop/formats/yaml_files.py", "yaml"): lambda folder, _: yaml_files.parse_texts("a: b", folder / "a.yml"),
    ("interop/hub.py", "huggingface_hub"): lambda _, __: model_folder_of("no-such/model"),
    ("interop/runtimes/browser.py", "selenium"): lambda _, __: browser._headless().__enter__(),
    ("interop/runtimes/ctranslate2.py", "ctranslate2"): lambda *given: ctranslate2_runtime.open_folder(*given, ""),
    ("interop/runtimes/ctranslate2.py", "sentencepiece"): lambda folder, parts: ctranslate2_runtime.Pieces(
        folder / "a.model", parts.source_tokenizer
    ),
    ("interop/runtimes/onnxruntime.py", "onnxruntime"): lambda *given: onnxruntime.open_folder(*given, "float32"),
    ("interop/runtimes/sentencepiece.py", "sentencepiece"): lambda *given: spm_runtime.open_folder(*given, ""),
    ("interop/runtimes/transformers.py", "transformers"): lambda *given: transformers.open_folder(*given, ""),
    ("lines/translation_tables.py", "pyarrow"): lambda _, __: translation_tables._pyarrow(),
    ("remote_files.py", "fsspec"): lambda _, __: storage.exists("memory://a"),
    ("shards/ray_engine.py", "ray"): lambda _, __: ray_engine._import_ray(),
    ("text/detection.py", "py3langid"): detect,
    ("text/preparation.py", "sacremoses"): lambda _, __: Preparation(moses="en").apply("said"),
    ("text/sentencepiece.py", "sentencepiece"): lambda _, __: open_model(b""),
    ("training/tensorboard.py", "tensorboard"): lambda _, __: require_tensorboard(),
}
"""What each check is made for."""


def test_every_check_is_tried() -> None:
    assert USES.keys() == {(check.file, check.module.partition(".")[0]) for check in all_checks()}


@pytest.mark.parametrize(("file", "module"), USES)
def test_without_its_package_a_feature_names_the_extra(
    file: str, module: str, parts: TranslatorParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it raises
    extras = {check.extra for check in all_checks() if (check.file, check.module.partition(".")[0]) == (file, module)}
    (extra,) = extras
    with pytest.raises(MissingDependencyError) as raised:
        USES[file, module](tmp_path, parts)
    message = str(raised.value)
    assert message.endswith(f'which is not installed: pip install "multihead[{extra}]"')
    assert "\n" not in message
    assert canonicalize_name(message.partition(" needs ")[2].partition(",")[0]) in EXTRAS[extra]


def test_a_package_that_lacks_another_one_names_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of SentencePiece come with it, and need protobuf."""
    for name in [name for name in sys.modules if name.startswith("sentencepiece.sentencepiece_model")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingDependencyError, match=r'needs protobuf, .*: pip install "multihead\[interop\]"'):
        sentencepiece.parse_model(b"")


def test_a_broken_package_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise OSError('libbroken.so:\\n  no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError) as raised:
        require_package("broken_package", "plot", "drawing")
    assert str(raised.value) == (
        "drawing needs broken_package, which cannot be imported (OSError: libbroken.so: no such file): "
        "pip install --force-reinstall broken_package"
    )


def test_what_is_installed_passes() -> None:
    require_package("json.decoder", "plot", "drawing")
