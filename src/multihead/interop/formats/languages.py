"""Names of languages: the user's, and those of a multilingual model.

Models name languages in their own ways: ``de`` (M2M-100), ``deu_Latn`` (NLLB), ``de_DE`` (mBART), ``deu`` (the Tatoeba
challenge). A user may give the model's name, or the language alone in two or three letters (ISO 639-1, 639-3).
"""

from __future__ import annotations

from collections.abc import Collection

from multihead.errors import ConfigurationError

_PAIRS = """
    af:afr am:amh ar:arb as:asm az:azj be:bel bg:bul bn:ben bo:bod bs:bos ca:cat cs:ces cy:cym da:dan de:deu el:ell
    en:eng eo:epo es:spa et:est eu:eus fa:pes fi:fin fo:fao fr:fra ga:gle gd:gla gl:glg gn:grn gu:guj ha:hau he:heb
    hi:hin hr:hrv ht:hat hu:hun hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kk:kaz km:khm kn:kan ko:kor
    ky:kir lb:ltz lg:lug ln:lin lo:lao lt:lit lv:lvs mg:plt mi:mri mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya
    nb:nob ne:npi nl:nld nn:nno oc:oci or:ory pa:pan pl:pol ps:pbt pt:por ro:ron ru:rus rw:kin sd:snd si:sin sk:slk
    sl:slv sm:smo sn:sna so:som sq:als sr:srp ss:ssw su:sun sv:swe sw:swh ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk
    tl:tgl tn:tsn tr:tur ts:tso tt:tat ug:uig uk:ukr ur:urd uz:uzn vi:vie wo:wol xh:xho yi:ydd yo:yor zh:zho zu:zul
"""
_THREE = dict(pair.split(":") for pair in _PAIRS.split())
"""ISO 639-3 for ISO 639-1; of a macrolanguage the member that multilingual models have."""

_TWO = {three: two for two, three in _THREE.items()}


def find_language(wanted: str | None, offered: Collection[str], side: str) -> str:
    """The name in a model of the language that the user means.

    Args:
        wanted: the user's name; None: not given, which is enough where the model has only one.
        offered: the model's names.
        side: "source" or "target", for messages.

    Raises:
        ConfigurationError: no language is named, the model does not have it, or several names of the model fit.
    """
    option = f"--{side}-language"
    if wanted is None:
        if len(offered) == 1:
            return next(iter(offered))
        raise ConfigurationError(
            f"this model has {len(offered)} {side} languages: name one with {option}: {_some(offered)}"
        )
    if wanted in offered:
        return wanted
    found = _meant(wanted, offered)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{option} {wanted}: this model has {', '.join(sorted(found))}: name one of them")
    raise ConfigurationError(f"{option} {wanted}: this model does not have it; it has {_some(offered)}")


def same_language(one: str, other: str) -> bool:
    """Whether two names can be one language: ``de`` and ``deu_Latn``, but not ``de_DE`` and ``de_AT``."""
    return other in _meant(one, [other]) or one in _meant(other, [one])


def _meant(wanted: str, offered: Collection[str]) -> list[str]:
    """The offered names that the user's name can mean; the exact ones only, if there are any."""
    name = wanted.replace("-", "_").lower()
    bases = {name, _THREE.get(name), _TWO.get(name)}
    for fits in (
        lambda one: one.lower() == name,
        lambda one: one.lower() in bases,
        lambda one: one.lower().split("_")[0] in bases,
    ):
        found = [one for one in offered if fits(one)]
        if found:
            return found
    return []


def _some(names: Collection[str]) -> str:
    """The names, or the first ones of many."""
    ordered = sorted(names)
    return ", ".join(ordered[:24]) + (f" and {len(ordered) - 24} more" if len(ordered) > 24 else "")
