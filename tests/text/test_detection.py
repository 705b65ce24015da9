"""Languages are detected among all or some, with probabilities."""

from __future__ import annotations

import math
import sys

import pytest

from multihead.errors import InputError, MissingDependencyError
from multihead.text import detection
from multihead.text.detection import detect, detectable

SENTENCES = {
    "ar": "يذهب الأطفال إلى المدرسة كل صباح.",
    "bg": "Децата отиват на училище всяка сутрин, а родителите работят.",
    "cs": "Děti chodí každé ráno do školy a jejich rodiče pracují.",
    "da": "Børnene går i skole hver morgen, mens deres forældre arbejder hjemme.",
    "de": "Die Kinder gehen jeden Morgen zur Schule, und ihre Eltern arbeiten.",
    "el": "Τα παιδιά πηγαίνουν στο σχολείο κάθε πρωί.",
    "en": "The children go to school every morning while their parents work.",
    "es": "Los niños van a la escuela todas las mañanas y sus padres trabajan.",
    "et": "Lapsed lähevad igal hommikul kooli ja nende vanemad töötavad.",
    "fa": "بچه‌ها هر روز صبح به مدرسه می‌روند و پدر و مادرشان کار می‌کنند.",
    "fi": "Lapset menevät joka aamu kouluun, ja heidän vanhempansa työskentelevät.",
    "fr": "Les enfants vont à l'école tous les matins et leurs parents travaillent.",
    "he": "הילדים הולכים לבית הספר בכל בוקר.",
    "hi": "बच्चे हर सुबह स्कूल जाते हैं और उनके माता-पिता काम करते हैं।",
    "hu": "A gyerekek minden reggel iskolába mennek, a szüleik pedig dolgoznak.",
    "id": "Anak-anak pergi ke sekolah setiap pagi karena mereka ingin belajar.",
    "it": "I bambini vanno a scuola ogni mattina e i loro genitori lavorano.",
    "ja": "子供たちは毎朝学校に行きます。",
    "ko": "아이들은 매일 아침 학교에 갑니다.",
    "lt": "Vaikai kiekvieną rytą eina į mokyklą, o jų tėvai dirba.",
    "lv": "Bērni katru rītu iet uz skolu, un viņu vecāki strādā.",
    "nl": "De kinderen gaan elke ochtend naar school en hun ouders werken.",
    "pl": "Dzieci chodzą do szkoły każdego ranka, a ich rodzice pracują.",
    "pt": "As crianças vão à escola todas as manhãs e os seus pais trabalham.",
    "ro": "Copiii merg la școală în fiecare dimineață, iar părinții lor lucrează.",
    "ru": "Дети каждое утро ходят в школу, а их родители работают.",
    "sv": "Barnen går till skolan varje morgon och deras föräldrar arbetar.",
    "th": "เด็กๆ ไปโรงเรียนทุกเช้า",
    "tr": "Çocuklar her sabah okula gidiyor ve ebeveynleri çalışıyor.",
    "uk": "Діти щоранку ходять до школи, а їхні батьки працюють.",
    "vi": "Trẻ em đến trường mỗi sáng và cha mẹ của chúng làm việc.",
    "zh": "孩子们每天早上去上学，他们的父母去上班。",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_in_its_language(code: str) -> None:
    assert detect(SENTENCES[code])[0][0] == code
    assert detect(SENTENCES[code], among=list(SENTENCES))[0][0] == code


@pytest.mark.parametrize("text", [*SENTENCES.values(), "ok", "a" * 30_000, "\ud800 x"])
def test_probabilities_fall_and_sum_to_one(text: str) -> None:
    found = detect(text)
    shares = [share for _, share in found]
    assert shares == sorted(shares, reverse=True)
    assert all(0 < share <= 1 for share in shares)
    assert math.isclose(sum(shares), 1, abs_tol=1e-3)
    assert {code for code, _ in found} <= detectable()
    assert len({code for code, _ in found}) == len(found)


def test_a_choice_keeps_the_proportions() -> None:
    text = SENTENCES["nl"]
    everywhere = dict(detect(text))
    few = dict(detect(text, among=["nl", "de", "af", "en"]))
    assert math.isclose(few["nl"] / few["af"], everywhere["nl"] / everywhere["af"], rel_tol=1e-3)
    assert dict(detect(text)) == everywhere  # a choice does not persist


def test_codes_are_returned_as_they_were_named() -> None:
    assert detect(SENTENCES["de"], among=["en", "de-AT", "xyz"])[0][0] == "de-AT"
    assert [code for code, _ in detect(SENTENCES["zh"], among=["zh_Hant", "zh-Hans"])] == ["zh_Hant"]
    assert detect("Jeg vet ikke hva du mener med dette.", among=["nb", "sv"])[0][0] == "nb"
    assert detect(SENTENCES["ja"], among=["de"]) == [("de", 1.0)]


@pytest.mark.parametrize("text", ["", " \n", "123 456,7", "😀 !?"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect(text) == []


@pytest.mark.parametrize("among", [[], ["xyz"], ["zxx"]])
def test_nothing_to_choose_from(among: list[str]) -> None:
    with pytest.raises(InputError, match="can be detected"):
        detect("Hallo", among=among)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    detection._identifier.cache_clear()
    detection._known.cache_clear()
    with pytest.raises(MissingDependencyError, match=r'py3langid.*pip install "multihead\[detect\]"'):
        detect("Hallo")
