"""The options of ``multihead serve``: models with their languages, and variables of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from multihead.cli.serve import VARIABLES, parse_models, serve
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
        assert f"envvar:{VARIABLES}_{str(option.name).upper()}" in text


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
    monkeypatch.chdir(tmp_path)
    Path("de-en=a").mkdir()
    assert parse_models(["de-en=a"]) == {None: Path("de-en=a")}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "b"], "a: of several models, each needs its languages"),
        (["de-en=a", "b"], "b: of several models, each needs its languages"),
        (["de-en=a", "de-en=b"], "de-en=b: these languages have a model already: a"),
        (["de=a"], "expected SOURCE-TARGET=FOLDER"),
        (["pt-BR-en=a"], "set off a code with a hyphen by a colon"),
        (["de-=a"], "expected SOURCE-TARGET=FOLDER"),
        (["de-en="], "expected SOURCE-TARGET=FOLDER"),
    ],
)
def test_what_is_no_model_is_named(words: list[str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_models(words)
