"""FSMT folders: the tokens, logits and translations of `transformers`, from the same files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from subword_nmt.learn_bpe import learn_bpe
from versions import fsmt_positions

from multihead.errors import FormatError
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages
from multihead.interop.importing import ImportOptions, import_model

SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 60,
    "dropout": 0.0,
}


@pytest.fixture(scope="module")
def fsmt(foreign: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of `transformers` and its folder; codes and vocabularies are learned from a few sentences."""
    from transformers import FSMTConfig, FSMTForConditionalGeneration, FSMTTokenizer

    folder = tmp_path_factory.mktemp("fsmt")
    lines = [*foreign.sentences(60), *foreign.sentences(60, english=True)]
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(lines)), codes, 60)
    merges = codes.getvalue().splitlines()[1:]
    (folder / "merges.txt").write_text("".join(f"{merge} 1\n" for merge in merges), encoding="utf-8")
    characters = sorted({character for line in lines for character in line if character != " "})
    pieces = dict.fromkeys([*characters, *(f"{one}</w>" for one in characters), *("".join(m.split()) for m in merges)])
    sides = (["&apos;</w>", *pieces], [*list(pieces)[::-1]])
    for name, own in zip(("src", "tgt"), sides, strict=True):
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *own])}
        (folder / f"vocab-{name}.json").write_text(json.dumps(ids), encoding="utf-8")
    names = [str(folder / name) for name in ("vocab-src.json", "vocab-tgt.json", "merges.txt")]
    FSMTTokenizer(["de", "en"], *names).save_pretrained(folder)
    config = FSMTConfig(langs=["de", "en"], src_vocab_size=len(sides[0]) + 4, tgt_vocab_size=len(sides[1]) + 4, **SIZES)
    model = FSMTForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                gain = "norm" in name and name.endswith("weight")
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + gain)
    model.save_pretrained(folder)
    return model, folder


def test_tokens_and_logits_are_theirs(foreign: Any, both_sides: Any, fsmt: tuple[Any, Path]) -> None:
    sides = both_sides(*fsmt)
    hard = ["Ein Hund’s „Haus“ – 17 Äpfel，viel Brot！", "z. B. am 3. Mai (heute)?", "a-b\u200bc & d", "漢字"]
    sides.check_source([*foreign.sentences(20), *hard])
    source, lengths = sides.batch(foreign.sentences(8))
    given = torch.randint(4, sides.parts.config.target_vocab, (8, 9), generator=torch.Generator().manual_seed(0))
    given[:, 0] = sides.parts.target_tokenizer.bos_id
    mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        # with a cache, they compute a whole target without a causal mask
        inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": given}
        expected = sides.theirs(**inputs, use_cache=False).logits
        torch.testing.assert_close(sides.network(source, lengths, given).logits, expected, rtol=0, atol=1e-4)
    target, theirs = sides.parts.target_tokenizer, sides.tokenizer
    for line in foreign.sentences(10, english=True):
        ids = target.encode(line)
        assert target.decode(ids) == theirs.decode(ids)
    assert (sides.parts.source_language, sides.parts.target_language) == ("de", "en")
    assert sides.parts.config.inner == 32


def test_the_search_is_that_of_the_folder(fsmt: tuple[Any, Path], tmp_path: Path) -> None:
    """Of generation_config.json, then of config.json, then of their class."""
    for path in fsmt[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    names = ("num_beams", "length_penalty", "max_length")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    plain = {name: value for name, value in config.items() if name not in names}
    usual = [5, 1.0, 200]  # of FSMTConfig
    for old, new, expected in (
        ({}, {}, usual),
        (dict.fromkeys(names[:2]), {}, usual),
        ({"num_beams": 3, "length_penalty": 0.4}, {}, [3, 0.4, 200]),
        ({"num_beams": 3}, {"num_beams": 10, "length_penalty": 1.1, "max_length": 90}, [10, 1.1, 90]),
    ):
        (tmp_path / "config.json").write_text(json.dumps(plain | old), encoding="utf-8")
        (tmp_path / "generation_config.json").write_text(json.dumps(new), encoding="utf-8")
        search = read_foreign(tmp_path, Languages()).generation
        assert [search.beam, search.alpha, (search.max_length or 0) + 1] == expected  # theirs counts the begin symbol


@fsmt_positions
def test_an_import_is_certified_by_transformers(foreign: Any, fsmt: tuple[Any, Path], tmp_path: Path) -> None:
    lines = tmp_path / "lines.de"
    lines.write_text("\n".join(foreign.sentences(3)) + "\n", encoding="utf-8")
    certificate = import_model(fsmt[1], tmp_path / "model", ImportOptions(lines=lines, beam=2), say=lambda _: None)
    assert certificate.state == "passed"
    assert certificate.program == "transformers"
    assert (tmp_path / "model" / "source.tokenizer.json").is_file()


def test_faults_are_one_line(fsmt: tuple[Any, Path], tmp_path: Path) -> None:
    for path in fsmt[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def refused(file: str, text: str, message: str) -> None:
        kept = (tmp_path / file).read_text(encoding="utf-8")
        (tmp_path / file).write_text(text, encoding="utf-8")
        with pytest.raises(FormatError, match=message):
            read_foreign(tmp_path, Languages())
        (tmp_path / file).write_text(kept, encoding="utf-8")

    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    refused("config.json", json.dumps(config | {"langs": ["de"]}), r"langs is \['de'\], expected two languages")
    refused("config.json", json.dumps(config | {"activation_function": "tanh"}), "the activation 'tanh'")
    refused("vocab-src.json", '{"<s>": 0, "a": 7}', "expected pieces with the ids from 0 on")
    refused("merges.txt", "a b 1\nc\n", "expected two symbols with a space")
    refused("tokenizer_config.json", '{"do_lower_case": true}', "text is lowercased before Moses")
    (tmp_path / "vocab-tgt.json").unlink()
    with pytest.raises(FormatError, match=r"vocab-tgt.json"):
        read_foreign(tmp_path, Languages())
