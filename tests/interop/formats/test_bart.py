"""BART's and Pegasus' layouts: the logits of `transformers`, and our own models after `transformers.write`."""

import json

import pytest
import torch

from multihead.errors import FormatError
from multihead.interop.formats import opening, transformers
from multihead.interop.formats.parts import Languages

LAYOUTS = {
    "marian": {"norm": "post"},
    "bart": {"norm": "post", "embedding_norm": True},
    "pegasus": {"norm": "pre"},
    "mbart": {"norm": "pre", "embedding_norm": True},
}


def written(parts, folder):
    folder.mkdir()
    transformers.write(parts, folder)
    return folder


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_we_write_we_read(make_parts, tmp_path, layout, shared):
    tied = {} if shared else {"tie_embeddings": False, "tie_output": layout == "marian"}
    parts = make_parts(shared=shared, **LAYOUTS[layout], **tied)
    folder = written(parts, tmp_path / layout)
    assert json.loads((folder / "config.json").read_text())["model_type"] == layout
    found = opening.read_foreign(folder, Languages())
    before, after = parts.build(tmp_path), found.build(folder)
    lines = ["Ein Hund rennt.", "</s> <s> ▁ 漢字", "Zwei Hunde!"]
    for one, other in (
        (parts.source_tokenizer, found.source_tokenizer),
        (parts.target_tokenizer, found.target_tokenizer),
    ):
        ids = one.encode_batch(lines)
        assert other.encode_batch(lines) == ids
        assert other.decode_batch(ids) == one.decode_batch(ids) == lines
        assert other.special_ids == one.special_ids
        assert set(one.forbidden_in_output) <= set(other.forbidden_in_output)
    source = torch.randint(4, parts.config.source_vocab, (3, 7), generator=torch.Generator().manual_seed(0))
    target = torch.randint(4, parts.config.target_vocab, (3, 6), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([7, 4, 5])
    with torch.no_grad():
        expected = before(source, lengths, target).logits
        logits = after(source, lengths, target).logits
    assert (logits[..., : expected.shape[-1]] - expected).abs().max() < (5e-3 if layout == "marian" else 1e-3)


def test_pegasus_without_a_table_computes_its_sinusoids(make_parts, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForSeq2SeqLM

    folder = written(make_parts(shared=True, norm="pre"), tmp_path / "pegasus")
    path = folder / "model.safetensors"
    save_file({name: one for name, one in load_file(path).items() if "embed_positions" not in name}, path)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    parts = opening.read_foreign(folder, Languages())
    assert (parts.config.positions, parts.config.sinusoid) == ("sinusoidal", "halves")
    source, target = torch.arange(4, 12)[None], torch.arange(4, 9)[None]
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        logits = parts.build(folder)(source, torch.tensor([8]), target).logits
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("template", "before"),
    [
        ({"type": "RobertaProcessing", "cls": ["<s>", 2], "sep": ["</s>", 3]}, (2,)),
        (None, ()),
    ],
)
def test_the_template_says_what_is_before_a_text(make_parts, tmp_path, template, before):
    folder = written(make_parts(shared=True, norm="pre"), tmp_path / "pegasus")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": template}))
    assert opening.read_foreign(folder, Languages()).source_tokenizer.prefix == before


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"type": "RobertaProcessing", "cls": ["<s>", 2], "sep": ["<s>", 2]}, "does not end with the end symbol"),
        ({"type": "TemplateProcessing", "single": [{"SpecialToken": {}}], "special_tokens": {}}, "template is damaged"),
    ],
)
def test_another_template_is_refused(make_parts, tmp_path, template, message):
    folder = written(make_parts(shared=True, norm="pre"), tmp_path / "pegasus")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": template}))
    with pytest.raises(FormatError, match=message):
        opening.read_foreign(folder, Languages())
