"""The options of ``multihead serve``: models with their languages, and variables of the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from multihead.cli.serve import VARIABLES, TeamFlags, parse_models, serve
from multihead.errors import ConfigurationError
from multihead.serving.settings import ServeSettings


def context(*words: str) -> click.Context:
    return serve.make_context("serve", list(words))


def test_every_option_can_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"host": "::1", "port": "90", "guard": "mark", "beam": "3", "threads": "2", "device": "cuda"}
    for name, value in values.items():
        monkeypatch.setenv(f"{VARIABLES}_{name.upper()}", value)
    monkeypatch.setenv(f"{VARIABLES}_CORS_ORIGIN", "https://a.org  https://b.org")
    monkeypatch.setenv(f"{VARIABLES}_MODELS", "de-en=a en-de=b")
    found = context().params
    assert {name: str(found[name]) for name in values} == values
    assert found["cors_origin"] == ("https://a.org", "https://b.org")
    assert found["models"] == ("de-en=a", "en-de=b")
    given = context("c", "--port", "80", "--cors-origin", "*").params
    assert (given["models"], given["port"], given["cors_origin"]) == (("c",), 80, ("*",))
    assert given["host"] == "::1"


def test_the_help_names_the_variables() -> None:
    options = [option for option in serve.params if isinstance(option, click.Option)]
    text = "".join(context("run").get_help().split())
    assert {option.name for option in options} >= set(ServeSettings.model_fields)
    for option in options:
        name = "with" if option.name == "others" else str(option.name)
        assert f"envvar:{VARIABLES}_{name.upper()}" in text


def test_a_bad_value_of_a_variable_is_one_line(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{VARIABLES}_PORT", "99999")
    result = call("serve", "run")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"{VARIABLES}_" in result.err
    assert "port" in result.err


def test_models_with_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_models(["run"]) == {None: Path("run")}
    assert parse_models(["de-en=a=b"]) == {("de", "en"): Path("a=b")}
    assert parse_models(["pt-BR:en=a", "en-de=b"]) == {("pt-BR", "en"): Path("a"), ("en", "de"): Path("b")}
    assert parse_models(["de-en=a", "de-en@large=b", "pt-BR:en@x-y=c"]) == {
        ("de", "en"): Path("a"), ("de", "en", "large"): Path("b"), ("pt-BR", "en", "x-y"): Path("c")
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("de-en=a").mkdir()
    assert parse_models(["de-en=a"]) == {None: Path("de-en=a")}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "b"], "a: each of several models needs its languages"),
        (["de-en=a", "b"], "b: each of several models needs its languages"),
        (["de-en=a", "de-en=b"], "a model already: a; give this one a name, as in de-en@large=b"),
        (
            ["de-en@a=a", "de-en@a=b"],
            "this name has a model already: a; give this one another name",
        ),
        (["de-en@=a"], "expected SOURCE-TARGET=FOLDER"),
        (["de=a"], "expected SOURCE-TARGET=FOLDER"),
        (["pt-BR-en=a"], "write a colon after a code with a hyphen"),
        (["de-=a"], "expected SOURCE-TARGET=FOLDER"),
        (["de-en="], "expected SOURCE-TARGET=FOLDER"),
    ],
)
def test_what_is_no_model_is_named(words: list[str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_models(words)


def test_models_of_an_ensemble_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{VARIABLES}_WITH", "a b")
    monkeypatch.setenv(f"{VARIABLES}_REVERSE", "c")
    monkeypatch.setenv(f"{VARIABLES}_JUDGE", "d")
    found = context("run").params
    assert (found["others"], found["reverse"], found["judge"]) == (("a", "b"), ("c",), ("d",))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("de-en=a", "en-de=b", "--with", "c"), "--with is for a single MODEL, got 2"),
        (("de-en=a", "en-de=b", "--uses"), "--uses is for a single MODEL, got 2"),
        (("a", "--uses", "--reverse", "b"), "--uses sets --reverse as the run says: leave out one of them"),
        (("a", "--uses", "--draft", "b"), "--uses sets --draft as the run says: leave out one of them"),
        (("a", "--uses", "--datastore", "b"), "--uses sets --datastore as the run says: leave out one of them"),
        (("a", "--draft", "b", "--datastore", "c"), "leave out --draft or --datastore"),
        (("a", "--mean", "probabilities"), "--mean needs --with"),
        (("a", "--weights", "reverse=1"), "--weights: reverse needs --reverse"),
        (("a", "--weights", "judge=1"), "--weights: judge needs --judge"),
        (("a", "--uses", "--judge", "b"), "--uses sets --judge as the run says: leave out one of them"),
        (("a", "--weights", "agreement=1", "--reverse", "b"), "--reverse does nothing without its weight"),
    ],
)
def test_flags_that_do_not_fit_are_named(words: tuple[str, ...], named: str, call: Callable[..., Any]) -> None:
    result = call("serve", *words)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert named in result.err


def test_better_uses_are_pointed_out(tmp_path: Path) -> None:
    assert TeamFlags().hint({None: tmp_path}) is None
    uses = [{"use": "the model alone", "flags": []}]
    (tmp_path / "uses.json").write_text(json.dumps({"uses": uses}))
    assert TeamFlags().hint({None: tmp_path}) is None
    (tmp_path / "uses.json").write_text(json.dumps({"uses": [*uses, {"use": "greedy", "flags": ["--beam", "1"]}]}))
    assert "--uses" in str(TeamFlags().hint({None: tmp_path}))
    assert TeamFlags(uses=True).hint({None: tmp_path}) is None
    assert TeamFlags().hint({("de", "en"): tmp_path, ("en", "de"): tmp_path}) is None
