"""T5, mT5, ByT5 and MADLAD-400: the tokens, logits and translations of `transformers`, from the same files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead import train
from multihead.attention import RelativeBias
from multihead.errors import ConfigurationError, FormatError
from multihead.interop.formats import opening
from multihead.interop.formats.parts import Languages
from multihead.interop.runtimes.transformers import TransformersRuntime
from multihead.text.tokenizer import Tokenizer

T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
MADLAD = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "user_defined_symbols": ["<2de>", "<2en>", "<2zh_Latn>"]}
SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
TASKS = {
    f"translation_en_to_{code}": {"prefix": f"translate English to {name}: ", "num_beams": 4}
    for code, name in (("de", "German"), ("fr", "French"))
} | {"summarization": {"prefix": "summarize: "}}

Build = Callable[..., Any]


@pytest.fixture(scope="module")
def vocabulary(foreign: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], tuple[Path, int]]:
    """The files of a tokenizer with these symbols, and its size."""

    def make(symbols: dict[str, Any]) -> tuple[Path, int]:
        from transformers import T5Tokenizer

        folder = tmp_path_factory.mktemp("tokenizer")
        lines = [*foreign.sentences(200), *foreign.sentences(200, english=True)]
        lines += ["translate English to German: x"] * 20
        (folder / "spiece.model").write_bytes(foreign.train_pieces(lines, **symbols))
        tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>" if symbols is T5 else "<s>"}
        tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=20 if symbols is T5 else 0, **tokens)
        tokenizer.save_pretrained(folder)
        return folder, len(tokenizer)

    made = {name: make(symbols) for name, symbols in (("T5", T5), ("MADLAD", MADLAD))}
    return lambda symbols: made["T5" if symbols is T5 else "MADLAD"]


@pytest.fixture(scope="module")
def build(foreign: Any, vocabulary: Callable[[dict[str, Any]], tuple[Path, int]]) -> Build:
    """Make a folder: ``build(folder, symbols, **settings)``; returns their model."""

    def make(
        folder: Path, symbols: dict[str, Any] = T5, *, library: bool = False, untied: bool = False, **settings: Any
    ) -> Any:
        from transformers import AutoModelForSeq2SeqLM, MT5Config, MT5ForConditionalGeneration, T5Config
        from transformers import T5ForConditionalGeneration as Network

        files, size = vocabulary(symbols)
        shutil.copytree(files, folder, dirs_exist_ok=True)
        (folder / ("spiece.model" if library else "tokenizer.json")).unlink()
        seed, updates, kind = settings.pop("seed", 0), settings.pop("updates", 0), settings.pop("kind", T5Config)
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        if symbols is MADLAD:
            ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
        made = kind(**{"vocab_size": size + 3, **ids, **SIZES, **settings})
        network = MT5ForConditionalGeneration if kind is MT5Config else Network
        model = foreign.written(network(made), folder, seed, updates)
        if untied:  # transformers 5 ties what it makes, but not what it reads
            path = folder / "model.safetensors"
            tensors = load_file(path)
            generator = torch.Generator().manual_seed(5)
            tensors["lm_head.weight"] = 0.2 * torch.randn(tensors["shared.weight"].shape, generator=generator)
            save_file(tensors, path, {"format": "pt"})
            model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
            assert model.lm_head.weight is not model.shared.weight
        return model

    return make


VARIANTS: dict[str, dict[str, Any]] = {
    "1.0": {},
    "1.0, another size": {"d_kv": 12, "num_heads": 3, "d_model": 20, "num_decoder_layers": 1, "seed": 3},
    "1.0, few buckets": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9},
    "1.1": GATED,
    "1.1, untied": {**GATED, "untied": True, "d_kv": 16},
    "SiLU": {"feed_forward_proj": "gated-silu"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_theirs(build: Build, foreign: Any, both_sides: Any, tmp_path: Path, name: str) -> None:
    sides = both_sides(build(tmp_path, **VARIANTS[name]), tmp_path)
    sides.check_logits([*foreign.sentences(6), " ".join(foreign.sentences(12))], allowed=5e-5)


@pytest.fixture(scope="module")
def learned(build: Build, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model that has learned the small language, and its folder; neither is to be changed."""
    folder = tmp_path_factory.mktemp("t5")
    return build(folder, updates=150, **{**GATED, "num_layers": 1}), folder


def test_a_trained_model_translates_as_theirs(learned: tuple[Any, Path], foreign: Any, both_sides: Any) -> None:
    sides = both_sides(*learned)
    sides.check_source([*foreign.sentences(20), "  zwei  Leerzeichen ", "漢字 läuft"])
    sides.check_target(foreign.sentences(20, english=True))
    sides.check_search(foreign.sentences(24, seed=3))


def test_white_space_at_the_end_is_no_difference(learned: tuple[Any, Path], both_sides: Any) -> None:
    parts = both_sides(*learned).parts
    tokenizer = parts.target_tokenizer
    row = [*tokenizer.encode("A dog"), tokenizer.vocabulary.index("▁")]
    assert TransformersRuntime(learned[1], parts).decode([row]) == [tokenizer.decode(row)] == ["A dog"]


@pytest.mark.parametrize("library", [False, True])
def test_the_language_token_stands_before_the_source(
    build: Build, foreign: Any, both_sides: Any, tmp_path: Path, library: bool
) -> None:
    """MADLAD-400: decoding begins with <unk>, padding is <s>; a typed token is text."""
    model = build(tmp_path, MADLAD, library=library, **{**GATED, "num_layers": 1})
    sides = both_sides(model, tmp_path, Languages("en", "de"))
    source, target = sides.parts.source_tokenizer, sides.parts.target_tokenizer
    assert source.vocabulary[source.prefix[-1]] == "<2de>"
    sides.check_source(foreign.sentences(20), before="<2de> ")
    sides.check_logits(foreign.sentences(4))
    assert (target.pad_id, target.bos_id, target.eos_id, target.prefix) == (1, 0, 2, ())
    languages = {i for i, name in enumerate(source.vocabulary) if name.startswith("<2")}
    assert len(languages) == 3
    assert languages <= set(target.forbidden_in_output)
    for text in (*foreign.hostile, "<2en> Hund <2de>"):
        assert languages.isdisjoint(source.encode_phrase(text))
    assert Tokenizer.from_json(source.to_json()).encode("Hund") == source.encode("Hund")
    with pytest.raises(ConfigurationError, match="3 target languages: name one with --target-language: de, en, zh_Lat"):
        opening.read_foreign(tmp_path, Languages())
    with pytest.raises(ConfigurationError, match="--target-language fr: this model does not have it"):
        opening.read_foreign(tmp_path, Languages(None, "fr"))


@pytest.mark.parametrize("library", [False, True])
def test_the_words_of_a_task_stand_before_the_source(
    build: Build, foreign: Any, both_sides: Any, tmp_path: Path, library: bool
) -> None:
    model = build(tmp_path, library=library, task_specific_params=TASKS, num_layers=1)
    sides = both_sides(model, tmp_path, Languages("en", "de"))
    source = sides.parts.source_tokenizer
    sides.check_source(["A dog", "translate English to German: x"], before="translate English to German: ")
    assert source.decode(source.prefix) == "translate English to German:"
    assert set(source.prefix).isdisjoint(source.control)
    again = Tokenizer.from_json(source.to_json())
    assert again.encode("translate a dog") == source.encode("translate a dog")
    assert again.digest == source.digest
    assert not opening.read_foreign(tmp_path, Languages("de", "en")).source_tokenizer.prefix  # fine-tuned for it
    with pytest.raises(ConfigurationError, match="this model translates en-de, en-fr: name one with --source-language"):
        opening.read_foreign(tmp_path, Languages())


def test_sentinels_are_never_read_nor_written(build: Build, foreign: Any, both_sides: Any, tmp_path: Path) -> None:
    model = build(tmp_path, library=True, num_layers=1)
    tokenizer = both_sides(model, tmp_path).parts.target_tokenizer
    sentinels = {i for i, name in enumerate(tokenizer.vocabulary) if "<extra_id_" in name}
    assert len(sentinels) == 20
    unused = {i for i, name in enumerate(tokenizer.vocabulary) if name.startswith("<unused")}
    assert len(unused) == 3
    assert sentinels | unused <= set(tokenizer.forbidden_in_output)
    for text in (*foreign.hostile, "Hund <extra_id_3> Haus"):
        assert (tokenizer.control - {tokenizer.unk_id}).isdisjoint(tokenizer.encode(text))


def test_byt5_reads_bytes(foreign: Any, both_sides: Any, tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration

    ByT5Tokenizer().save_pretrained(tmp_path)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = T5Config(**{"vocab_size": 384, **ids, **SIZES, **GATED, "num_layers": 1})
    sides = both_sides(foreign.written(T5ForConditionalGeneration(config), tmp_path, 0, 0), tmp_path)
    texts = [*foreign.sentences(8), "  zwei  Leerzeichen ", "漢字 läuft", "🐕"]
    sides.check_source(texts)
    sides.check_logits(foreign.sentences(3))
    tokenizer = sides.parts.source_tokenizer
    for text in foreign.hostile:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert [text[start:stop] for start, stop in tokenizer.spans(text)] == [c for c in text for _ in c.encode()]
    assert {13, *range(259, 384)} <= set(tokenizer.forbidden_in_output)  # a line break, sentinels
    assert Tokenizer.from_json(tokenizer.to_json()).digest == tokenizer.digest


def test_mt5_never_scales(build: Build, foreign: Any, both_sides: Any, tmp_path: Path) -> None:
    from transformers import MT5Config

    sides = both_sides(build(tmp_path, kind=MT5Config, feed_forward_proj="gated-gelu", num_layers=1), tmp_path)
    assert sides.parts.config.embedding_scale == "none"
    sides.check_logits(foreign.sentences(3))


def test_half_of_the_names_of_the_embedding_are_enough(build: Build, tmp_path: Path) -> None:
    """MADLAD's files have decoder.embed_tokens in place of shared."""
    build(tmp_path, num_layers=1)
    weights = opening.read_foreign(tmp_path, Languages()).weights
    expected = {name: tensor.clone() for name, tensor in weights.items()}  # not of the file, which is written again
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors.pop("shared.weight")
    save_file({**tensors, "decoder.embed_tokens.weight": table}, tmp_path / "model.safetensors")
    found = opening.read_foreign(tmp_path, Languages()).weights
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"feed_forward_proj": "gated-tanh"},
            "feed_forward_proj is 'gated-tanh'; this multihead reads models with relu",
        ),
        ({"d_kv": None}, "has no d_kv"),
        ({"d_ff": 7}, "not the weights of the network that its settings describe"),
        ({"num_layers": 3}, r"encoder\.block\.1\.layer\.0\.SelfAttention\.q\.weight' is missing"),
        ({"relative_attention_num_buckets": 7}, "relative_buckets must be even"),
        ({"vocab_size": 20}, "but the network has 20 entries"),
    ],
)
def test_what_cannot_be_read_is_named(build: Build, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    build(tmp_path, num_layers=1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=message) as caught:
        opening.read_foreign(tmp_path, Languages()).build(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_is_needed(build: Build, tmp_path: Path) -> None:
    build(tmp_path, num_layers=1)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(FormatError, match=r"there is no vocabulary; expected tokenizer\.json or spiece\.model"):
        opening.read_foreign(tmp_path, Languages())
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": {"type": "BPE"}}')
    with pytest.raises(FormatError, match=r"tokenizer\.json: expected a unigram vocabulary"):
        opening.read_foreign(tmp_path, Languages())


def test_an_import_has_a_certificate_and_goes_nowhere_else(
    learned: tuple[Any, Path], tmp_path: Path, call: Callable[..., Any]
) -> None:
    result = call("import", learned[1], "-o", tmp_path / "out", "--count", 8, "--beam", 3)
    assert result.status == 0, result.err
    assert "tokenizer 8 of 8 equal" in result.err
    for form in ("transformers", "ctranslate2", "onnx", "web"):
        result = call("export", tmp_path / "out", "--format", form, "-o", tmp_path / form)
        assert (result.status, (tmp_path / form).exists()) == (2, False)
        assert "RMS norms" in result.err
        assert "relative positions" in result.err


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 9), (64, 200), (32, 17), (6, 1000)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_distance_has_their_bucket(buckets: int, distance: int, causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-3000, 3001)
    bias = RelativeBias(2, buckets=buckets, max_distance=distance, causal=causal)
    theirs = T5Attention._relative_position_bucket(distances, not causal, buckets, distance)
    assert torch.equal(bias.bucket(distances), theirs)


def test_it_is_fine_tuned_with_its_subwords(learned: tuple[Any, Path], foreign: Any, tmp_path: Path) -> None:
    """Relative positions and norms learn; padding, the decoder's first input, does not; the folder is then ours."""
    for side, english in (("de", False), ("en", True)):
        lines = foreign.sentences(90, 7, english=english)
        for name, part in (("own", lines[:60]), ("valid", lines[60:])):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    texts = {
        f"{name}{side}": tmp_path / f"{'valid' if name else 'own'}.{code}"
        for name in ("", "valid_")
        for side, code in (("source", "de"), ("target", "en"))
    }
    said: list[str] = []
    settings: dict[str, Any] = {"updates": 12, "warmup": 2, "learning_rate": 2e-3, "threads": 1, "seed": 1}
    run = train(from_model=learned[1], output=tmp_path / "run", **texts, **settings, say=said.append)
    assert any("nothing is resized" in line for line in said)
    before, after = opening.read_foreign(learned[1], Languages()), run.translator().bundle
    assert after.source_tokenizer.digest == before.source_tokenizer.digest
    assert after.model.config == before.config.model_copy(
        update={name: getattr(after.model.config, name) for name in before.config.training_only}
    )
    weights = dict(after.model.named_parameters())
    changed = {name for name, weight in weights.items() if not torch.equal(weight, before.weights[name])}
    assert changed == weights.keys()
    table = "source_embedding.table.weight"
    assert torch.equal(weights[table][0], before.weights[table][0])
    assert before.weights[table][0].any()
    assert run.translator().translate(foreign.sentences(2))
