"""Whole runs of language models: resumed runs equal uninterrupted ones; perplexity, generation, commands."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead import train as train_translator
from multihead.data.texts import windows
from multihead.errors import ConfigurationError, DataError, FormatError, InputError, Interrupted
from multihead.metrics.perplexity import TextPerplexity
from multihead.planning.settings import TrainSettings
from multihead.runs.language_model.generation import Generation
from multihead.runs.language_model.model import LanguageModel, holds_language_model
from multihead.runs.language_model.settings import SUPPORTED, LanguageModelRunConfig, parse
from multihead.runs.language_model.train import train

TINY: dict[str, Any] = {
    "width": 16,
    "decoder_layers": 1,
    "heads": 2,
    "inner": 16,
    "vocab_size": 290,
    "batch_tokens": 400,
    "updates": 20,
    "validate_every": 8,
    "log_every": 3,
    "precision": "float32",
    "threads": 1,
}
WORDS = (("the dog", "a cat", "my bird"), ("sees", "hears"), ("me", "you", "him", "her"))


def text(count: int, seed: int) -> str:
    """Sentences whose parts are drawn uniformly and independently: each has the probability 1 / (3 * 2 * 4)."""
    draw = random.Random(seed)
    return "".join(" ".join(map(draw.choice, WORDS)) + "\n" for _ in range(count))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(text(300, 0))
    return path


def run(corpus: Path, folder: Path, **wishes: Any) -> Any:
    """Call `train` without output, on one thread."""
    threads = torch.get_num_threads()
    try:
        quiet = {"say": lambda _: None, "use_threads": torch.set_num_threads, "target": corpus}
        return train(output=folder, **{**quiet, **TINY, **wishes})
    finally:
        torch.set_num_threads(threads)


def after(updates: int) -> dict[str, Any]:
    """A signal after a number of updates; while the text is stored it is polled once per line."""
    left: list[int | None] = [None]

    def ask() -> int | None:
        if left[0] is None:
            return None
        left[0] -= 1
        return 2 if left[0] < 0 else None

    def heard(line: str) -> None:
        if "going on" in line or re.match(r" +threads", line):
            left[0] = updates

    return {"stop_signal": ask, "say": heard}


def kept(numbers: Any, folder: Path) -> dict[str, str]:
    """The files of a run, without timings, printed logs and earlier checkpoints."""
    contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
    return {name: digest for name, digest in contents.items() if "checkpoints/" not in name or "00000020" in name}


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    "wishes",
    [
        {"dropout": 0.2},
        {"max_tokens": 5, "positions": "rotary", "norm_kind": "rms", "feed_forward": "swiglu", "accumulate": 2},
    ],
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    wishes: dict[str, Any], corpus: Path, numbers: Any, tmp_path: Path
) -> None:
    """Stopped twice between validations; all files but timings and printed logs are equal, byte for byte."""
    run(corpus, tmp_path / "whole", **wishes)
    for updates in (5, 6):
        with pytest.raises(Interrupted, match="run the same command again to continue"):
            run(corpus, tmp_path / "stopped", **wishes, **after(updates))
    said: list[str] = []
    run(corpus, tmp_path / "stopped", say=said.append, **wishes)
    assert said[0] == "going on after update 11 of 20"
    assert kept(numbers, tmp_path / "stopped") == kept(numbers, tmp_path / "whole")


@pytest.fixture(scope="module")
def tiny(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has learned little, with short windows."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    run(corpus, folder, max_tokens=24)
    return folder


def test_a_run_that_broke_off_goes_on_from_its_checkpoint(
    tiny: Path, corpus: Path, numbers: Any, tmp_path: Path
) -> None:
    def break_off(line: str) -> None:
        if line.strip().startswith("15/20"):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run(corpus, tmp_path / "run", say=break_off, max_tokens=24)
    said: list[str] = []
    train(output=tmp_path / "run", say=said.append)
    assert said[0] == "going on after update 8 of 20"
    assert kept(numbers, tmp_path / "run") == kept(numbers, tiny)


def test_a_finished_run_says_so_and_what_it_is_made_of(tiny: Path, corpus: Path, numbers: Any) -> None:
    before, said = numbers.contents(tiny), list[str]()
    result = train(output=tiny, say=said.append)
    assert said[0].startswith("this run is finished: 20 updates; the best model, of update 20 with a validation perpl")
    assert numbers.contents(tiny) == before
    assert result.language_model().reading.max_tokens == 24
    config = LanguageModelRunConfig.model_validate_json((tiny / "run.json").read_text())
    assert config.asked == {"target": str(corpus), "model": "decoder", "max_tokens": 24, **TINY}
    stated = config.text
    assert (stated.texts, stated.held_out, stated.valid_texts, stated.left_out) == (294, 6, 6, 0)
    assert (config.training.best_by, config.training.smoothing, config.model.norm) == ("loss", 0.0, "pre")
    records = [json.loads(line) for line in (tiny / "log.jsonl").read_text().splitlines()]
    found = [record for record in records if record["kind"] == "validation"]
    assert [record["step"] for record in found] == [8, 16, 20]
    last = found[-1]
    assert last["loss"] == pytest.approx(math.log(last["perplexity"]))
    per_line = last["loss"] * last["tokens"]
    assert per_line == pytest.approx(last["characters"] * math.log(last["perplexity_per_character"]))
    assert per_line == pytest.approx(last["bytes"] * last["bits_per_byte"] * math.log(2))


def test_without_a_number_of_updates_the_time_decides(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run(corpus, tmp_path / "run", say=said.append, updates=None, budget=2.0)
    assert any("what fits into 2 s" in line for line in said)
    assert (tmp_path / "run" / "plan.jsonl").is_file()
    assert train(output=tmp_path / "run", say=said.append).updates > 0


def test_symbols_of_the_user_are_one_token(tmp_path: Path) -> None:
    (path := tmp_path / "text").write_text("the <b> dog </b> sees\n" * 20)
    found = run(path, tmp_path / "run", updates=1, user_symbols=("<b>", "</b>")).language_model()
    (one,) = found.score(["a <b> cat </b>"])
    assert one.tokens.count("<b>") == one.tokens.count("</b>") == 1
    assert found.generate(["a <b> cat"])[0].startswith("a <b> cat")


def test_other_settings_and_other_runs(tiny: Path, corpus: Path, numbers: Any, trained: Path) -> None:
    with pytest.raises(ConfigurationError, match="width was 16, now 32"):
        run(corpus, tiny, max_tokens=24, width=32)
    before = numbers.contents(tiny)
    with pytest.raises(ConfigurationError, match="a run of `multihead train --model decoder`, not of a translator"):
        numbers.learn(tiny)
    with pytest.raises(ConfigurationError, match="holds a run of `multihead train`, not of a language model"):
        run(corpus, trained)
    assert numbers.contents(tiny) == before


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("content", "wishes", "words"),
    [
        (b"", {}, "text: is empty; expected text"),
        (b"\n  \n\n", {}, "text: no text in it: every line is empty"),
        (b"a b\n", {}, "lines with text: 1, and 1 would be held out"),
        (b"a b\n" * 9, {"held_out": 9}, "lines with text: 9, and 9 would be held out"),
        (b"a \xff\n" * 9, {}, "9 of 9 lines are not valid UTF-8"),
        (b"a b\n" * 9, {"preset": "huge"}, "the decoder model has no preset 'huge'"),
        (b"a b\n" * 9, {"heads": 3}, "width must be a multiple of heads"),
        (b"a b\n" * 9, {"positions": "learned", "max_positions": 9}, "max_positions is 9, but up to 512 tokens"),
        (b"a b\n" * 9, {"valid_target": "nothing"}, "nothing: there is no such file"),
        (b"a b\n" * 9, {"source": "x"}, "source is a setting of translators, and model 'decoder' is a language model"),
        (b"a b\n" * 9, {"encoder_layers": 2}, "encoder_layers is a setting of translators"),
        (b"a b\n" * 9, {"model": "transformer"}, "a language model is 'decoder', got 'transformer'"),
        (b"a b\n" * 9, {"widht": 4}, "no setting 'widht'; did you mean 'width'"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(
    content: bytes, wishes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (corpus := tmp_path / "text").write_bytes(content)
    with pytest.raises(InputError, match=words):
        run(corpus, tmp_path / "run", **{"vocab_size": 270, **wishes})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"max_tokens": 1}, "max_tokens is 1, and a language model reads 2 tokens at least"),
        ({"positions": "learned", "max_positions": 100}, "max_positions is 100, but up to 512 tokens are read at once"),
        ({"valid_target": "other", "held_out": 50}, "held_out and valid_target exclude each other"),
    ],
)
def test_faulty_settings_are_named_before_the_text_is_read(wishes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run(tmp_path / "no such text", tmp_path / "run", **wishes)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_named_is_asked_for(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigurationError, match="output missing"):
        train(target=corpus)
    with pytest.raises(ConfigurationError, match="target missing"):
        train(output=tmp_path / "run")


def test_every_setting_is_of_language_models_or_refused() -> None:
    values: dict[str, Any] = {"teacher": ["x"], "corpus": ["a b"], "data": "x", "from_model": "x", "lora": 4, "beam": 2}
    for name in TrainSettings.model_fields:
        if name in SUPPORTED:
            continue
        with pytest.raises(ConfigurationError, match=f"{name} is a setting of translators"):
            parse({name: values.get(name, 1)})


def test_a_translator_is_not_a_decoder(tmp_path: Path, numbers: Any) -> None:
    with pytest.raises(ConfigurationError, match="model decoder is a language model, which does not translate"):
        train_translator(output=tmp_path / "run", model="decoder", say=lambda _: None, **numbers.train)


def test_lines_that_are_not_text_are_named_and_another_text_validates(tmp_path: Path) -> None:
    corpus, said = tmp_path / "text", list[str]()
    corpus.write_bytes(b"a b c\n" * 150 + b"\xff\n\n" + b"d e\n" * 4)
    few = {"vocab_size": 270, "updates": 1, "validate_every": 1}
    run(corpus, tmp_path / "run", **few, say=said.append, valid_target=corpus)
    config = LanguageModelRunConfig.model_validate_json((tmp_path / "run" / "run.json").read_text())
    stated = config.text
    assert (stated.texts, stated.held_out, stated.valid_texts) == (154, 0, 154)
    assert (stated.valid_characters, stated.valid_bytes) == (150 * 6 + 4 * 4,) * 2
    assert any("text:151: not valid UTF-8" in line for line in said)
    (empty := tmp_path / "empty").write_text("\n\n")
    with pytest.raises(DataError, match="empty: no text in it"):
        run(corpus, tmp_path / "new", **few, valid_target=empty)


# --------------------------------------------------------------------------- what is learned


def test_the_loss_of_a_line_approaches_the_entropy_of_its_grammar(tmp_path: Path, without_checks: Any) -> None:
    """All 24 sentences are equally probable: a line has log 24 nats, whatever its subwords are."""
    (tmp_path / "train.txt").write_text(text(1500, 0))
    (tmp_path / "valid.txt").write_text("".join(f"{a} {b} {c}\n" for a in WORDS[0] for b in WORDS[1] for c in WORDS[2]))
    sizes: dict[str, Any] = {"width": 32, "inner": 64, "dropout": 0.0, "batch_tokens": 1024, "vocab_size": 310}
    with without_checks():
        often = {"updates": 120, "validate_every": 60}
        run(tmp_path / "train.txt", tmp_path / "run", valid_target=tmp_path / "valid.txt", **sizes, **often)
    metrics = json.loads((tmp_path / "run" / "best" / "metrics.json").read_text())
    assert metrics["loss"] * metrics["tokens"] / metrics["lines"] == pytest.approx(math.log(24), rel=0.05)
    model = LanguageModel.load(tmp_path / "run")
    drawn = model.generate(["my bird"] * 40, sample=True, seed=3)
    sentences = {f"my bird {verb} {object_}" for verb in WORDS[1] for object_ in WORDS[2]}
    assert sum(line in sentences for line in drawn) >= 36
    assert len({line for line in drawn if line in sentences}) >= 6


# --------------------------------------------------------------------------- scores


TEXTS = ["the dog sees me", "", "a cat", "  ", "my bird hears him and " * 6, "日本 🐦"]


def test_scores_are_those_of_the_equation_and_of_texts_alone(tiny: Path) -> None:
    """A long text is scored in windows: each token given the preceding tokens of its window."""
    model = LanguageModel.load(tiny)
    together = model.score(TEXTS, batch_tokens=60)
    for line, found in zip(TEXTS, together, strict=True):
        (alone,) = model.score([line])
        assert alone.log_probabilities == pytest.approx(found.log_probabilities, abs=1e-5)
        if not line.strip():
            assert (found.tokens, found.log_probability) == ([], 0.0)
            continue
        expected: list[float] = []
        for row in windows(model.tokenizer.encode(line), model.tokenizer, 24):
            with torch.no_grad():
                logits = model.model(torch.tensor([row[:-1]]))[0].log_softmax(-1)
            expected += [float(logits[place, token]) for place, token in enumerate(row[1:])]
        assert found.log_probabilities == pytest.approx(expected, abs=1e-5)
        assert found.tokens == model.tokenizer.pieces([*model.tokenizer.encode(line), model.tokenizer.eos_id])
    assert len(together[4].tokens) > 2 * 24


def test_perplexities_follow_from_the_sum() -> None:
    total = TextPerplexity()
    total.add("né", [-1.0, -2.0])
    total.add("", [])
    total.add("x", [-3.0])
    assert (total.texts, total.tokens, total.characters, total.bytes) == (2, 3, 5, 6)
    assert total.per_token == pytest.approx(math.exp(2))
    assert total.per_character == pytest.approx(math.exp(6 / 5))
    assert total.bits_per_byte == pytest.approx(1 / math.log(2))
    assert math.isnan(TextPerplexity().per_token)
    assert TextPerplexity(-1e6, 1, 1, 1, 1).per_token == math.inf


# --------------------------------------------------------------------------- generation


def test_greedy_continuations_are_those_of_the_model_and_of_prompts_alone(tiny: Path) -> None:
    model = LanguageModel.load(tiny)
    prompts = ["the dog", "", "a cat sees ", "my bird hears him and " * 6]
    found = model.generate(prompts, max_length=5, batch_tokens=1)
    assert found == model.generate(prompts, max_length=5)
    tokenizer = model.tokenizer
    for prompt, line in zip(prompts, found, strict=True):
        ids = tokenizer.encode(prompt.rstrip())
        read = [tokenizer.bos_id, *ids][-(24 - 5) :]
        written: list[int] = []
        while len(written) < 5:
            with torch.no_grad():
                logits = model.model(torch.tensor([[*read, *written]]))[0, -1]
            logits[list(tokenizer.forbidden_in_output)] = -torch.inf
            written.append(int(logits.argmax()))
            if written[-1] == tokenizer.eos_id:
                break
        assert line == tokenizer.decode([*ids, *written])
        assert line.startswith(prompt.rstrip())


def test_samples_are_a_function_of_seed_and_line(tiny: Path) -> None:
    model = LanguageModel.load(tiny)
    prompts = ["the dog", "", "", "a cat"]
    found = model.generate(prompts, sample=True, seed=5)
    assert found == model.generate(prompts, sample=True, seed=5, batch_tokens=1)
    assert found != model.generate(prompts, sample=True, seed=6)
    assert found[1] != found[2]
    assert found[2:] == model.generate(prompts[2:], sample=True, seed=5, keys=[2, 3])
    sharp = model.generate(prompts, sample=True, top_k=1)
    assert sharp == model.generate(prompts)
    wide = model.generate(prompts, beam=3, no_repeat=2, min_length=3)
    assert all(len(model.tokenizer.encode(line)) >= 3 for line in wide)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_length": 24}, "reads 24 tokens at once, so at most 23 can follow a prompt, but 24 were requested"),
        ({"min_length": 30}, "but 31 were requested"),
        ({"beam": 0}, "beam"),
        ({"temperature": 0.0}, "temperature"),
        ({"tempreature": 1.0}, "tempreature"),
        ({"batch_tokens": 0}, "batch_tokens must be a number of at least 1"),
    ],
)
def test_impossible_continuations(tiny: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        LanguageModel.load(tiny).generate(["a"], **settings)


def test_one_string_is_refused(tiny: Path) -> None:
    model = LanguageModel.load(tiny)
    for method in (model.generate, model.score):
        with pytest.raises(InputError, match=r"got one string; write \[text\]"):
            method("the dog")
    assert Generation(sample=True, top_p=0.5).sharpening == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 0.5,
        "min_p": None,
        "epsilon": None,
    }


# --------------------------------------------------------------------------- folders


def test_a_model_folder_is_kept_whole(tiny: Path, trained: Path, tmp_path: Path, numbers: Any) -> None:
    model = LanguageModel.load(tiny)
    model.save(tmp_path / "copy", {"loss": 1.5}, "A copy.")
    again = LanguageModel.load(tmp_path / "copy")
    assert again.generate(["the dog"]) == model.generate(["the dog"])
    assert "| loss | 1.5 |" in (tmp_path / "copy" / "README.md").read_text()
    assert [holds_language_model(folder) for folder in (tiny, tiny / "best", trained, tmp_path)] == [
        *(True, True, False, False)
    ]
    with pytest.raises(FormatError, match="'transformer', not a language model, which `multihead train --model dec"):
        LanguageModel.load(trained)
    with pytest.raises(FormatError, match="a language model, which does not translate; see `multihead generate"):
        Translator.load(tiny)
    shutil.copy(trained / "best" / "tokenizer.json", tmp_path / "copy" / "tokenizer.json")
    numbers.seal_again(tmp_path / "copy")
    with pytest.raises(FormatError, match="not the tokenizer that this model was trained with"):
        LanguageModel.load(tmp_path / "copy")


# --------------------------------------------------------------------------- commands

Call = Callable[..., Any]


def flags(settings: dict[str, Any]) -> Iterator[object]:
    for name, value in settings.items():
        yield from (f"--{name.replace('_', '-')}", value)


def test_the_command_trains_and_goes_on(call: Call, corpus: Path, tiny: Path, numbers: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["train", "--model", "decoder", "--target", corpus, "--max-tokens", 24, *flags(TINY), "--output", folder]
    ended = call(*words)
    assert ended.status == 0, ended.err
    assert kept(numbers, folder) == kept(numbers, tiny)
    assert call("train", "--output", folder).err.startswith("this run is finished: 20 updates")
    (config := tmp_path / "run.toml").write_text(f'model = "decoder"\ntarget = "{corpus}"\noutput = "{folder}"\n')
    assert call("train", "--config", config).status == 0
    for given, words_of_error in (
        (["--source", corpus], "source is a setting of translators"),
        (["--lora", 4], "lora is given without from_model"),
        (["--best"], "model decoder is a language model, which does not translate"),
    ):
        ended = call("train", "--model", "decoder", "--target", corpus, "--output", tmp_path / "new", *given)
        assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
        assert words_of_error in ended.err
        assert not (tmp_path / "new").exists()


def test_the_commands_that_use_it(call: Call, tiny: Path, tmp_path: Path, trained: Path) -> None:
    model = LanguageModel.load(tiny)
    given = b"the dog\n\n a cat \n"
    ended = call("generate", tiny, "--max-length", 6, given=given)
    assert ended.text.split("\n")[:-1] == model.generate(["the dog", "", " a cat "], max_length=6)
    drawn = call("generate", tiny / "best", "--sample", "--seed", 4, given=given).text.split("\n")[:-1]
    assert drawn == model.generate(["the dog", "", " a cat "], sample=True, seed=4)
    assert call("generate", tiny, "a cat", "--beam", 2).text == model.generate(["a cat"], beam=2)[0] + "\n"

    lines = ["the dog sees me", "", "a cat"]
    (path := tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    scored, total = model.score(lines), TextPerplexity()
    for line, one in zip(lines, scored, strict=True):
        total.add(line, one.log_probabilities)
    ended = call("score", tiny, "--target", path, "--perplexity")
    assert ended.text.split("\n")[:-1] == [f"{one.log_probability:.4f}" for one in scored]
    assert ended.err == f"{total} ({total.tokens} tokens, end symbols counted)\n"
    assert call("score", tiny, given=path.read_bytes()).out == ended.out
    row = call("score", tiny, "--tokens", "--normalize", given=b"a cat\n").text.rstrip("\n").split("\t")
    assert row[0] == f"{scored[2].score(1.0):.4f}"
    assert row[1::2] == scored[2].tokens
    ended = call("evaluate", tiny, "--target", path)
    assert ended.text == f"{total}\n2 lines, {total.tokens} tokens\n"
    assert json.loads(call("evaluate", tiny, "--target", path, "--json").text) == {
        "model": str(tiny),
        **total.as_dict(),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["translate", "RUN"], "a language model, which does not translate; see `multihead generate --help`"),
        (["generate", "TRANSLATOR", "x"], "the network in it is 'transformer', not a language model"),
        (["generate", "RUN", "--top-k", "3"], "--top-k needs --sample"),
        (["generate", "RUN", "--max-length", "24"], "at most 23 can follow a prompt"),
        (["generate", "RUN"], "standard input:1: not valid UTF-8"),
        (["score", "RUN"], "standard input:1: not valid UTF-8"),
        (["score", "RUN", "--target", "bad"], "bad:1: 1 of 1 lines are not valid UTF-8"),
        (["score", "RUN", "--target-language", "de"], "--target-language is for translators"),
        (["evaluate", "RUN", "--target", "empty"], "empty: is empty"),
        (["evaluate", "RUN", "--target", "blank"], "blank: every line is empty: there is nothing to evaluate"),
        (["evaluate", "RUN", "--target", "blank", "--json"], "blank: every line is empty"),
        (["evaluate", "RUN", "--target", "bad", "--beam", "3"], "--beam is for translators"),
        (["evaluate", "TRANSLATOR", "--target", "bad"], "--source is missing: only a language model"),
        (["score", "TRANSLATOR", "--target", "bad"], "--source is missing"),
    ],
)
def test_what_the_commands_refuse(
    call: Call, tiny: Path, trained: Path, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad").write_bytes(b"\xff\n")
    Path("empty").write_bytes(b"")
    Path("blank").write_bytes(b"\n \n")
    ended = call(*({"RUN": tiny, "TRANSLATOR": trained}.get(word, word) for word in words), given=b"\xff\n")
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, b"", 1), ended.err
    assert said in ended.err
