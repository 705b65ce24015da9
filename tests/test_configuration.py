"""Settings: frozen, and validated with helpful messages."""

from __future__ import annotations

import json
import math
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from multihead.configuration import Settings, build, nearest, read_toml
from multihead.errors import ConfigurationError, SettingsError


def every_settings_class() -> list[type[Settings]]:
    """The groups of settings in the package's modules that need no optional packages."""
    for module in (
        "cleaning.settings",
        "runs.translator.train",
        "serving.settings",
        "runs.report.plan",
        "runs.best.plan",
    ):
        import_module(f"multihead.{module}")
    for kind in ("bert", "classifier", "pointer"):
        import_module(f"multihead.runs.{kind}.settings")
    found, waiting = [], [Settings]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found += [cls for cls in below if cls.__module__.startswith("multihead.") and cls.model_fields]
    found = [cls for cls in found if cls.model_config["extra"] == "forbid"]  # some requests have anything
    return sorted(set(found), key=lambda cls: (cls.__module__, cls.__name__))


class Sizes(Settings):
    """An example."""

    width: int = Field(default=8, ge=2)
    """How wide."""
    share: float = 0.5
    kind: Literal["pre", "post"] = "pre"
    name: str | None = None

    @model_validator(mode="after")
    def _agree(self):
        if self.width == 13:
            raise ValueError("Width 13 brings bad luck")
        return self


def refused(values, origin="here"):
    with pytest.raises(ConfigurationError) as caught:
        build(Sizes, values, origin)
    message = str(caught.value)
    assert caught.value.exit_status == 2
    assert message.startswith(f"{origin}: ")
    assert "\n" not in message
    return message.removeprefix(f"{origin}: ")


def test_values_and_defaults() -> None:
    assert build(Sizes, {"width": 4}, "here") == Sizes(width=4, share=0.5, kind="pre", name=None)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Sizes().width = 3  # type: ignore[misc]


@pytest.mark.parametrize(("typed", "meant"), [("widht", "width"), ("shares", "share"), ("Kind", "kind")])
def test_a_misspelt_key_names_the_nearest(typed: str, meant: str) -> None:
    assert refused({typed: 1}) == f"there is no setting '{typed}'; did you mean '{meant}'?"


def test_a_key_like_nothing_names_all() -> None:
    assert refused({"zzz": 1}) == "there is no setting 'zzz'; there are: kind, name, share, width"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"width": 1}, "width: input should be greater than or equal to 2, got 1"),
        ({"width": "many"}, "width: input should be a valid integer"),
        ({"width": 2.5}, "got 2.5"),
        ({"width": None}, "got None"),
        ({"kind": "middle"}, "kind: input should be 'pre' or 'post', got 'middle'"),
        ({"share": [1]}, "share: input should be a valid number, got [1]"),
        ({"width": 13}, "Width 13 brings bad luck"),
    ],
)
def test_a_value_that_cannot_be_says_what_was_got_and_expected(values: dict[str, Any], said: str) -> None:
    assert said in refused(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf"])
def test_numbers_that_json_does_not_have_are_refused(value: float | str) -> None:
    """JSON would store them as null."""
    assert "share: input should be a finite number" in refused({"share": value})


def test_all_that_is_wrong_is_said_at_once() -> None:
    message = refused({"width": 0, "knd": "pre", "share": "x"})
    assert message.count(";") >= 2
    assert all(word in message for word in ("width", "did you mean 'kind'", "share"))


class Group(Settings):
    """Settings inside of settings."""

    sizes: Sizes = Sizes()
    count: int = 1


def test_python_names_the_nearest_setting_too() -> None:
    with pytest.raises(SettingsError) as caught:
        Sizes(widht=8, share="x")  # type: ignore[call-arg, arg-type]
    problems = ["there is no setting 'widht'; did you mean 'width'?", "share: input should be a valid number"]
    assert str(caught.value).startswith(f"Sizes: {problems[0]}; {problems[1]}")
    assert caught.value.exit_status == 2
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__context__, ValidationError)
    assert caught.value.__suppress_context__  # a traceback shows the one line alone
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (SettingsError, str(caught.value))


@pytest.mark.parametrize("cls", every_settings_class(), ids=lambda cls: cls.__name__)
def test_every_group_of_settings_names_what_there_is_not(cls: type[Settings]) -> None:
    name = f"{next(iter(cls.model_fields))}x"
    with pytest.raises(
        SettingsError, match=rf"^{cls.__name__}: there is no setting '{name}'; did you mean '"
    ) as caught:
        cls(**{name: None})
    assert "\n" not in str(caught.value)


def test_settings_inside_of_settings_are_reported_where_they_are() -> None:
    """Also by pydantic itself, on which JSON, TOML and the readers of checkpoints rely."""
    with pytest.raises(
        SettingsError, match=r"^Group: sizes\.width: input should be greater than or equal to 2, got 1$"
    ):
        Group(sizes={"width": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^here: sizes\.width: input should be"):
        build(Group, {"sizes": {"width": 1}}, "here")
    with pytest.raises(ValidationError) as caught:
        Group.model_validate_json('{"sizes": {"width": 1, "nme": 2}}')
    assert [error["loc"] for error in caught.value.errors()] == [("sizes", "width"), ("sizes", "nme")]


def test_json_and_back_is_the_same() -> None:
    settings = Sizes(width=6, share=1 / 3, name="ü▁")
    assert Sizes.model_validate_json(settings.model_dump_json()) == settings
    assert Sizes(**json.loads(json.dumps(settings.model_dump(mode="json")))) == settings


def test_the_sentence_under_a_field_is_its_description() -> None:
    assert Sizes.model_fields["width"].description == "How wide."


def test_nearest() -> None:
    assert nearest("smal", ["small", "tiny"]) == "; did you mean 'small'?"
    assert nearest("x", ["small", "big"]) == "; there are: big, small"


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('width = 4\nkind = "post"\n', encoding="utf-8")
    assert build(Sizes, read_toml(path), str(path)) == Sizes(width=4, kind="post")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as editors of Windows save it
    assert build(Sizes, read_toml(path), str(path)) == Sizes(width=4, kind="post")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("folder", "Is a directory"),
        (b"width = ", "not valid TOML"),
        (b"width = 1\nwidth = 2\n", "not valid TOML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"\x00\x01", "not valid TOML"),
    ],
)
def test_what_is_not_toml_is_said_to_be(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    path = tmp_path / "a.toml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="/dev/zero: not a file of settings: it has more than 1,048,576 bytes"):
        read_toml(Path("/dev/zero"))
