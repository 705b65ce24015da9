"""Languages: codes as clients write them, and English names.

Codes are those of the models' folders (ISO 639, BCP 47, or any other). A client may write them in another case, with
``_`` for ``-``, or with another region or script if only one code has the same language.
"""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = """
aa Afar|ab Abkhazian|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|ast Asturian|av Avaric|
ay Aymara|az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian|bi Bislama|bm Bambara|bn Bengali|bo Tibetan|br Breton|
bs Bosnian|ca Catalan|ce Chechen|ceb Cebuano|ch Chamorro|co Corsican|cs Czech|cv Chuvash|cy Welsh|da Danish|de German|
dsb Lower Sorbian|dv Divehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque|
fa Persian|ff Fulah|fi Finnish|fil Filipino|fj Fijian|fo Faroese|fr French|fy Western Frisian|ga Irish|
gd Scottish Gaelic|gl Galician|gn Guarani|gsw Swiss German|gu Gujarati|gv Manx|ha Hausa|haw Hawaiian|he Hebrew|
hi Hindi|hr Croatian|hsb Upper Sorbian|ht Haitian Creole|hu Hungarian|hy Armenian|ia Interlingua|id Indonesian|ig Igbo|
ilo Iloko|io Ido|is Icelandic|it Italian|iu Inuktitut|ja Japanese|jv Javanese|ka Georgian|kab Kabyle|kg Kongo|
ki Kikuyu|kk Kazakh|kl Kalaallisut|km Khmer|kn Kannada|ko Korean|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz|
la Latin|lb Luxembourgish|lg Ganda|li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lv Latvian|mg Malagasy|
mh Marshallese|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|
nb Norwegian Bokmål|nds Low German|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|nso Northern Sotho|nv Navajo|
ny Chichewa|oc Occitan|om Oromo|or Odia|os Ossetian|pa Punjabi|pl Polish|ps Pashto|pt Portuguese|qu Quechua|
rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami|sg Sango|
si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian|sr Serbian|ss Swati|st Southern Sotho|
su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|
to Tongan|tr Turkish|ts Tsonga|tt Tatar|tw Twi|ty Tahitian|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|
vi Vietnamese|vo Volapük|wa Walloon|wo Wolof|xh Xhosa|yi Yiddish|yo Yoruba|yue Cantonese|za Zhuang|zh Chinese|zu Zulu
"""
NAMES = dict(entry.strip().split(" ", 1) for entry in _NAMES.split("|"))
"""English names by ISO 639 code."""


def name_of(code: str) -> str:
    """The English name of a language, with the rest of its code in parentheses; an unknown code stays as it is."""
    language, _, rest = code.replace("_", "-").partition("-")
    name = NAMES.get(language.lower())
    if name is None:
        return code
    return f"{name} ({rest})" if rest else name


def match(code: str, known: Iterable[str]) -> str | None:
    """The known code that a client means; None if there is none.

    Args:
        code: as the client writes it.
        known: the codes of the models.
    """
    codes, wanted = list(known), _normalize(code)
    for one in codes:
        if _normalize(one) == wanted:
            return one
    similar = {one for one in codes if _normalize(one).partition("-")[0] == wanted.partition("-")[0]}
    return similar.pop() if len(similar) == 1 else None


def _normalize(code: str) -> str:
    return code.strip().casefold().replace("_", "-")
