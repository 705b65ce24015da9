"""`docs/from-the-documents.md` is complete, names only existing counterparts, and its weight mappings fit.

These documents are outside the project; tests that need them are skipped without them. `test_pages` runs the page's
code.
"""

from __future__ import annotations

import ast
import importlib
import keyword
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.cli.main import multihead as command
from multihead.models.config import TransformerConfig, preset
from multihead.models.transformer import Transformer

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"
PAGE = (ROOT / "docs" / "from-the-documents.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


# --------------------------------------------------------------------------- the documents, whole

CODE = re.compile(r"\b(class|def) +(\w+)")
ARGUMENTS = re.compile(r"def +\w+\(\s*self\s*,([^)]*)\)|def +(?!_)\w+\(([^)]*)\)", re.DOTALL)
SCRIPT = re.compile(r"\b(\w+\.py)\b")


def words_of_the_documents() -> dict[str, set[str]]:
    """For each document, the classes, functions, arguments and files that its code shows."""
    found = {}
    for path in sorted(SEEDS.glob("00[0-4]_*.txt")):
        # Some lines of code start with line numbers of the page that the text was copied from.
        text = re.sub(r"^\d+(?=\s*(class|def|[A-Za-z_#]))", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        code = re.sub(r"#.*", "", text)
        words = {match[2] for match in CODE.finditer(code)} | set(SCRIPT.findall(text))
        for match in ARGUMENTS.finditer(code):
            for argument in (match[1] or match[2] or "").split(","):
                name = re.sub(r"^\d*\s*", "", argument.split("=")[0].split(":")[0].strip())
                words |= {name} if re.fullmatch(r"[a-z]\w*", name) else set()
        found[path.name[:3]] = {word for word in words if not keyword.iskeyword(word)} - {"forward", "__init__"}
    return found


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the source documents are not beside the project")
@pytest.mark.parametrize("document", ["000", "002", "003", "004"])
def test_the_page_of_the_documents_leaves_no_name_out(document: str) -> None:
    """Every class, function, argument and file of a document is mentioned in its section of the page."""
    assert missing(words_of_the_documents()[document], section(document)) == set()


def section(document: str) -> str:
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(document))


def missing(words: set[str], text: str) -> set[str]:
    return {word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)}


@pytest.mark.parametrize(("document", "words"), [
    ("001", "加性模型 点积模型 缩放点积模型 双线性模型 软性注意力 硬性注意力 键值对注意力 多头注意力 结构化注意力 "
            "指针网络 自注意力 嵌入 位置编码 残差连接 层归一化 掩蔽自注意力 贪心算法 束搜索算法"),
    ("002", "PAD_WORD UNK_WORD BOS_WORD EOS_WORD w_qs w_ks w_vs fc w_1 w_2 slf_attn enc_attn pos_ffn src_word_emb "
            "trg_word_emb trg_word_prj layer_stack position_enc pos_table layer_norm"),
    ("002", "-data_pkl -train_path -val_path -epoch -b --batch_size -d_model -d_inner_hid -d_k -d_v -n_head -n_layers "
            "-warmup --n_warmup_steps -lr_mul -seed -dropout -embs_share_weight -proj_share_weight -scale_emb_or_prj "
            "-output_dir -use_tb -save_mode -no_cuda -label_smoothing"),
    ("002", "-model -output -beam_size -max_seq_len translate_sentence load_model _get_init_state _model_decode "
            "_get_the_best_score_and_idx cal_performance cal_loss patch_src patch_trg train_epoch eval_epoch "
            "prepare_dataloaders prepare_dataloaders_from_bpe_files"),
    ("002", "-raw_dir -data_dir -codes -save_data -prefix -max_len --symbols --min-frequency --dict-input --separator "
            "--total-symbols -lang_src -lang_trg -data_src -data_trg -min_word_count -keep_case -share_vocab BPE "
            "process_line learn_bpe preprocess.py"),
    ("003", "linear_layers output_linear BS ES ML HC HS VS TBS VBS SENet CBAM BAM ECA-Net SA-Net BlockMask GQA"),
    ("004", "Wq Wk Wv fc_out energy head_dim"),
])  # fmt: skip
def test_nor_what_their_text_and_the_repository_name(document: str, words: str) -> None:
    """Terms, attributes, and the repository's scripts with their flags."""
    assert {word for word in words.split() if word not in section(document)} == set()
    ascii_words = {word for word in words.split() if word.isascii()}
    assert missing(ascii_words, section(document)) == set()


def test_each_equation_has_a_row() -> None:
    rows = "".join(row for row in section("001").splitlines(keepends=True) if row.startswith("| "))
    assert [n for n in range(1, 11) if f"({n})" not in rows] == []


def test_its_links_lead_to_its_sections() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert len(links) == len(titles) == 6
    assert set(links) == anchors


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the source documents are not beside the project")
def test_the_trace_has_the_shapes_that_the_document_prints() -> None:
    (path,) = SEEDS.glob("000_*.txt")
    theirs = re.findall(r"torch\.Size\((\[[\d, ]+\])\)", path.read_text(encoding="utf-8"))
    (table,) = re.findall(r"key_padding_mask=~words\)\)\n```\n\n```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    ours = [re.findall(r"\[[\d, ]+\]", line)[0] for line in table.splitlines()[2:]]
    assert len(theirs) == 12
    assert ours == theirs


# --------------------------------------------------------------------------- what is said to be ours


class Row(NamedTuple):
    """A row of a table ``theirs | ours | what differs``."""

    theirs: str
    ours: str


def rows() -> list[Row]:
    found, header = [], ""
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            header = ""
        elif not header:
            header = line
        elif header.startswith("| theirs") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found.append(Row(cells[0], cells[1] if len(cells) > 1 else ""))
    return found


@cache
def names() -> set[str]:
    """All names that the package defines or uses, and its modules."""
    files = list((ROOT / "src").rglob("*.py"))
    found = {part for path in files for part in path.relative_to(ROOT / "src").with_suffix("").parts}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {str(value) for key, value in vars(node).items() if key in ("name", "id", "arg", "attr")}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)  # settings' choices, file names
    return found


def options(group: click.Command) -> Iterator[str]:
    for parameter in group.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for sub in getattr(group, "commands", {}).values():
        yield from options(sub)


MADE_FROM = {"n_head", "d_k", "d_v", "temperature", "enc_output", "lr_mul", "mask_mod"}
"""Names of the documents from which ours are derived."""
OTHERS = {"True", "False", "RuntimeError", "best", "texts", "path", "jsonl", "W_q", "W_k", "W_v", "Q", "K", "V"}
"""Python's, of an example, of a file, and lines of a trace."""


def test_what_is_said_to_be_ours_exists() -> None:
    flags = set(options(command))
    unknown = []
    for row in rows():
        for text in re.findall(r"`([^`]+)`", row.ours):
            if text.startswith("--"):
                unknown += [text] if text.split()[0] not in flags else []
            elif not text.startswith("multihead "):
                unknown += [w for w in re.findall(r"[A-Za-z_]\w*", text) if w not in names() | MADE_FROM | OTHERS]
    assert len(rows()) > 100
    assert unknown == []


def test_whatever_has_a_dot_is_where_it_is_said_to_be() -> None:
    """``module.name`` and ``Class.name``."""
    dotted = {name for row in rows() for name in re.findall(r"`([A-Za-z_]\w*\.[A-Za-z_]\w*)(?:\(|`)", row.ours)}
    dotted = {name for name in dotted if not name.endswith((".txt", ".tsv", ".jsonl"))}
    dotted -= {f"{side}_embedding.{part}" for side in ("source", "target") for part in ("table", "norm")}
    parameters = {name.rpartition(".")[0] for name, _ in Transformer(like(preset("tiny"))).named_modules()}
    modules = {name for name, _ in Transformer(like(preset("tiny"))).named_modules()} | parameters
    dotted = {name for name in dotted if not any(module.endswith(name) for module in modules)}
    assert len(dotted) > 20
    assert [name for name in sorted(dotted) if not exists(name)] == []


def like(sizes: dict[str, Any]) -> TransformerConfig:
    return TransformerConfig(source_vocab=9, target_vocab=9, **sizes)


def exists(name: str) -> bool:
    owner, _, part = name.partition(".")
    for path in (ROOT / "src").rglob("*.py"):
        if path.stem == "__main__":
            continue
        text = path.read_text(encoding="utf-8")
        if path.stem != owner and f"class {owner}" not in text:
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
        thing = module if path.stem == owner else getattr(module, owner, None)
        if hasattr(thing, part) or part in getattr(thing, "__annotations__", {}):
            return True
    return False


# --------------------------------------------------------------------------- the repository's weights


def function_of_the_page(name: str) -> Callable[..., Any]:
    for code in SNIPPETS:
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                namespace = {"torch": torch, "re": re, "TransformerConfig": TransformerConfig, "preset": preset}
                exec(compile(ast.Module([node], []), "docs/from-the-documents.md", "exec"), namespace)
                return namespace[name]
    raise AssertionError(f"docs/from-the-documents.md defines no {name}")


VOCAB, WIDTH, HEADS, D_K, D_V, INNER, LAYERS, PAD = 11, 12, 3, 5, 2, 14, 2, 0


def shapes_of_002() -> dict[str, tuple[int, ...]]:
    """Its parameters under its own names (`Models.py`, `Layers.py` and `SubLayers.py` of 002)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for side, word in (("encoder", "src"), ("decoder", "trg")):
        shapes[f"{side}.{word}_word_emb.weight"] = (VOCAB, WIDTH)
        shapes[f"{side}.position_enc.pos_table"] = (1, 200, WIDTH)
        norms = [f"{side}.layer_norm"]
        for layer in (f"{side}.layer_stack.{n}" for n in range(LAYERS)):
            for attention in ("slf_attn", "enc_attn")[: 1 + (side == "decoder")]:
                for part, rows_of in (("w_qs", D_K), ("w_ks", D_K), ("w_vs", D_V)):
                    shapes[f"{layer}.{attention}.{part}.weight"] = (HEADS * rows_of, WIDTH)
                shapes[f"{layer}.{attention}.fc.weight"] = (WIDTH, HEADS * D_V)
                norms.append(f"{layer}.{attention}.layer_norm")
            shapes |= {f"{layer}.pos_ffn.w_1.weight": (INNER, WIDTH), f"{layer}.pos_ffn.w_1.bias": (INNER,)}
            shapes |= {f"{layer}.pos_ffn.w_2.weight": (WIDTH, INNER), f"{layer}.pos_ffn.w_2.bias": (WIDTH,)}
            norms.append(f"{layer}.pos_ffn.layer_norm")
        shapes |= {f"{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")}
    return shapes | {"trg_word_prj.weight": (VOCAB, WIDTH)}


def logits_of_002(
    state: dict[str, Tensor], source: Tensor, target: Tensor, scale_emb: float, scale_prj: float
) -> Tensor:
    """Its network, for one sentence without padding."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), state[f"{name}.layer_norm.weight"], state[f"{name}.layer_norm.bias"], 1e-6)

    def attend(x: Tensor, memory: Tensor, name: str, look_ahead: bool = True) -> Tensor:
        q, k, v = (
            (y @ state[f"{name}.{part}.weight"].T).unflatten(1, (HEADS, -1)).transpose(0, 1)
            for y, part in ((x, "w_qs"), (memory, "w_ks"), (memory, "w_vs"))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(D_K)
        later = torch.ones(len(x), len(memory)).triu(1) == 1
        heads = (scores if look_ahead else scores.masked_fill(later, -1e9)).softmax(-1) @ v
        return norm(x + heads.transpose(0, 1).flatten(1) @ state[f"{name}.fc.weight"].T, name)

    def feed_forward(x: Tensor, name: str) -> Tensor:
        hidden = F.linear(x, state[f"{name}.w_1.weight"], state[f"{name}.w_1.bias"]).relu()
        return norm(x + F.linear(hidden, state[f"{name}.w_2.weight"], state[f"{name}.w_2.bias"]), name)

    def embed(ids: Tensor, side: str, word: str) -> Tensor:
        table = state[f"{side}.position_enc.pos_table"][0, : len(ids)]
        return norm(state[f"{side}.{word}_word_emb.weight"][ids] * scale_emb + table, side)

    x = embed(source, "encoder", "src")
    for layer in (f"encoder.layer_stack.{n}" for n in range(LAYERS)):
        x = feed_forward(attend(x, x, f"{layer}.slf_attn"), f"{layer}.pos_ffn")
    y = embed(target, "decoder", "trg")
    for layer in (f"decoder.layer_stack.{n}" for n in range(LAYERS)):
        y = attend(y, y, f"{layer}.slf_attn", look_ahead=False)
        y = feed_forward(attend(y, x, f"{layer}.enc_attn"), f"{layer}.pos_ffn")
    return y @ state["trg_word_prj.weight"].T * scale_prj


@pytest.mark.parametrize(("scale", "tied"), [("emb", True), ("prj", True), ("none", True), ("prj", False)])
def test_a_checkpoint_of_the_repository_gives_its_network(scale: str, tied: bool) -> None:
    """`like_002` and `from_002` of the page, with random weights under its names."""
    draw = torch.Generator().manual_seed(1)
    state = {name: torch.randn(shape, generator=draw).double() / 2 for name, shape in shapes_of_002().items()}
    angle = torch.arange(200).double()[:, None] / 10000 ** (torch.arange(WIDTH) // 2 * 2 / WIDTH)
    table = torch.where(torch.arange(WIDTH) % 2 == 0, angle.sin(), angle.cos()).float().double()[None]
    state |= {f"{side}.position_enc.pos_table": table for side in ("encoder", "decoder")}
    if tied:
        same = state["trg_word_prj.weight"]
        state |= {"encoder.src_word_emb.weight": same, "decoder.trg_word_emb.weight": same}
    config = function_of_the_page("like_002")(
        VOCAB, VOCAB, PAD, PAD, d_word_vec=WIDTH, d_model=WIDTH, d_inner=INNER, n_layers=LAYERS, n_head=HEADS,
        d_k=D_K, d_v=D_V, trg_emb_prj_weight_sharing=tied, emb_src_trg_weight_sharing=tied, scale_emb_or_prj=scale,
    )  # fmt: skip
    model = Transformer(config).double().eval()
    model.load_state_dict(function_of_the_page("from_002")(state))
    source, target = torch.randint(1, VOCAB, (5,), generator=draw), torch.randint(1, VOCAB, (4,), generator=draw)
    # It scales embeddings only if the projection is tied to them.
    scales = (WIDTH**0.5 if tied and scale == "emb" else 1.0, WIDTH**-0.5 if tied and scale == "prj" else 1.0)
    expected = logits_of_002(state, source, target, *scales)
    found = model(source[None], torch.tensor([5]), target[None]).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
