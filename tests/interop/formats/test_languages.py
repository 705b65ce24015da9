"""Languages by the model's name, or by a code of two or three letters."""

import pytest

from multihead.errors import ConfigurationError
from multihead.interop.formats.languages import find_language, same_language

NLLB = ["deu_Latn", "eng_Latn", "srp_Cyrl", "zho_Hans", "zho_Hant"]
MBART = ["de_DE", "en_XX", "zh_CN"]


@pytest.mark.parametrize(
    ("wanted", "offered", "found"),
    [
        ("deu_Latn", NLLB, "deu_Latn"),
        ("de", NLLB, "deu_Latn"),
        ("deu", NLLB, "deu_Latn"),
        ("zho-Hant", NLLB, "zho_Hant"),
        ("sr", NLLB, "srp_Cyrl"),
        ("de", MBART, "de_DE"),
        ("zho", MBART, "zh_CN"),
        ("de", ["deu", "eng"], "deu"),
        ("eng", ["de", "en"], "en"),
        (None, ["de"], "de"),
    ],
)
def test_a_language_is_found(wanted, offered, found):
    assert find_language(wanted, offered, "target") == found


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (None, "this model has 5 target languages: name one with --target-language: deu_Latn, eng_Latn"),
        ("zh", "--target-language zh: this model has zho_Hans, zho_Hant: name one of them"),
        ("xx", "--target-language xx: this model does not have it; it has deu_Latn"),
    ],
)
def test_a_wrong_or_missing_name_is_refused(wanted, message):
    with pytest.raises(ConfigurationError, match=message):
        find_language(wanted, NLLB, "target")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("de", "de", True),
        ("de", "deu_Latn", True),
        ("deu_Latn", "de", True),
        ("zho_Hans", "zho_Hant", False),
        ("de_DE", "de_AT", False),
        ("de", "en_XX", False),
    ],
)
def test_forms_of_one_language_are_the_same(one, other, same):
    assert same_language(one, other) is same
