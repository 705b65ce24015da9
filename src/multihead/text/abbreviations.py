"""Abbreviations that do not end a sentence, and codes of languages.

`ANYWHERE` are abbreviations that a capital letter may follow ("mevr. De Vries"), `NUMBERED` those that a number follows
("kl. 14"). Both add to the lists of sentencex, which `text.boundaries` uses first: they hold what it lacks, by language
and without the full stop. Abbreviations that only precede lower-case words are missing here, because no sentence ends
before a lower-case letter.
"""

from __future__ import annotations

from functools import lru_cache

_NORDIC = "hr dr prof dos ing kand cand mag st frk adv kapt maj gen div sen jr resp inkl ekskl bl.a m.fl m.m"
_CZECH = "p sv doc prof dr ing mgr bc judr mudr phdr rndr paeddr mvdr thdr gen plk pplk kpt mjr por ul nám tř tzv např"
_SOUTH_SLAVIC = "g ga gđa gđica gdč gosp dr mr mag prof doc akad inž ing dipl sv ul npr tj tzv oz odn gen"

ANYWHERE = {
    "af": "mnr mev mej dr prof ds adv genl kol kapt sers bv d.w.s o.a",
    "ar": "د أ م ا.د أ.د",
    "bn": "ডা ড ডঃ মো মোঃ মি মিসেস অধ্যা রু",
    "bs": _SOUTH_SLAVIC,
    "ca": "sr sra srta dr dra prof st sta av avda ctra p.ex",
    "cs": _CZECH,
    "da": _NORDIC,
    "de": "fa hr fr frl str tel abt dipl dipl.-ing inkl evtl ggf zzgl",
    "en": "mr mrs ms mx messrs dr prof gen sgt cpl lt col maj capt cmdr adm gov sen rep rev hon st mt",
    "es": "D dr dra sr sra srta sres ud uds n°",
    "et": "hr pr prl dr prof mag kol kpt kt nt vt st s.t s.o",
    "fi": "hra rva nti tri dr prof dos maist toim joht esim mm ns ent",
    "fr": "M MM mgr dr dre pr prof st ste cie bd av pl",
    "hi": "डॉ श्री श्रीमती सुश्री कु पं प्रो रु स्व",
    "hr": _SOUTH_SLAVIC,
    "hu": "dr prof ifj id özv szt st ún pl ill kb vö br gr mr ms",
    "id": "dr drs dra prof ir H hj tn ny sdr sdri bpk yth jl gg kab kec kel kp st ust",
    "is": "hr fr frú dr prof sr séra þ.e t.d m.a o.fl",
    "it": "sig sig.ra sig.na sigg dott dott.ssa prof prof.ssa ing avv geom rag on sen mons don ss p.za v.le c.so",
    "lt": "dr doc prof akad inž gen plk mjr kpt vyr pvz",
    "lv": "dr doc prof akad inž ģen plkv mjr kpt piem t.i u.c sv",
    "mr": "डॉ श्री श्रीमती सौ कु प्रा पं रु",
    "ms": "dr prof ir hj tn en pn yb yab jln kg tmn sdr sdri",
    "nb": _NORDIC,
    "nl": "mevr mw dhr hr dr drs ir ing mr prof ds st jhr mgr mej fam wed bijv n.v b.v o.a m.a.w d.w.z t.a.v resp",
    "nn": _NORDIC,
    "no": _NORDIC,
    "pl": "dr prof hab inż mgr lek doc ks św gen płk ppłk mjr kpt por ppor al ul pl os p pp tzw zob por im",
    "pt": "sr sra srta dr dra prof profa eng av R D pça trav exmo exma ilmo v.ex sto sta",
    "ro": "dl dna d-l d-na dr prof ing av sf str bd bdul gen col lt mr",
    "ru": "пл просп бул и.о т.е св им акад доц проф",
    "sk": _CZECH,
    "sl": _SOUTH_SLAVIC,
    "sq": "z znj dr prof ing rr bul",
    "sr": _SOUTH_SLAVIC + " г гђа гђица госп др мр проф доц акад инж св ул нпр тј тзв",
    "sv": _NORDIC + " fr tf t.ex dvs d.v.s s.k fr.o.m t.o.m",
    "sw": "dk prof bw bi",
    "tr": "dr doç prof yrd av op uzm ecz müh ord org kor alb yzb cad sok mah apt bkz örn sn",
    "uk": "п пп др проф доц акад ім св вул просп пл",
    "vi": "tp ts ths pgs gs bs ks cn tt đc lm",
}
NUMBERED = {
    "cs": "č čl odst obr",
    "da": "d nr s",
    "de": "s nr art abs kap bd ziff rn zf",
    "el": "αρ σελ κεφ άρ",
    "es": "n núm págs",
    "et": "lk ptk jn",
    "fi": "klo nro s luku",
    "fr": "n nº p art chap",
    "hu": "sz old u",
    "id": "no hal hlm",
    "is": "bls kl nr s",
    "it": "n nn pagg art artt c par",
    "lt": "p psl",
    "lv": "lpp p plkst",
    "nb": "kl s ca",
    "nl": "blz p art",
    "pl": "s godz rys ust pkt poz m ok r",
    "pt": "n nº págs art p",
    "ro": "p art alin lit",
    "ru": "д кв корп рис п ст гл т",
    "sk": "č čl ods obr",
    "sl": "št čl sl",
    "hr": "br čl sl",
    "sr": "br čl sl бр чл стр",
    "sv": "kl s ca",
    "tr": "s sf",
    "uk": "буд кв рис п ст гл т",
}
_EVERYWHERE = "nr abb fig figs tab vol cap kap pag pág pàg str kl pp"
"""Of `NUMBERED` in any language; before a number they are nothing else."""

_CODES = (
    "afr:af amh:am ara:ar arb:ar bel:be ben:bn bos:bs bul:bg cat:ca ces:cs cym:cy dan:da deu:de ell:el eng:en est:et "
    "eus:eu fas:fa fin:fi fra:fr gle:ga glg:gl guj:gu heb:he hin:hi hrv:hr hun:hu hye:hy ind:id isl:is ita:it jpn:ja "
    "kan:kn kat:ka kaz:kk khm:km kor:ko lit:lt lvs:lv lav:lv mal:ml mar:mr mkd:mk mlt:mt mya:my nld:nl nno:nn nob:nb "
    "nor:no pan:pa pes:fa pol:pl por:pt ron:ro rus:ru slk:sk slv:sl spa:es sqi:sq srp:sr swe:sv swh:sw swa:sw tam:ta "
    "tel:te tha:th tur:tr ukr:uk urd:ur vie:vi zho:zh zsm:ms"
)
_TWO_LETTERS = {three: two for three, _, two in (pair.partition(":") for pair in _CODES.split())}


def primary_code(code: str | None) -> str:
    """The language of a code without script and region, of two letters if known: "zh" for zh-TW, "de" for deu_Latn.

    "" for None and for the codes of no language ("und", "mul").
    """
    name = (code or "").strip().replace("_", "-").partition("-")[0].lower()
    return "" if name in ("und", "mul") else _TWO_LETTERS.get(name, name)


@lru_cache(maxsize=64)
def abbreviations(language: str) -> tuple[frozenset[str], frozenset[str]]:
    """Of a language (a `primary_code`), the abbreviations that anything may follow, and those that numbers follow."""
    numbered = f"{NUMBERED.get(language, '')} {_EVERYWHERE}"
    return frozenset(ANYWHERE.get(language, "").split()), frozenset(numbered.split())
