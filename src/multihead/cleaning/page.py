"""The report of a cleaning: a self-contained HTML page without scripts.

How many candidates each filter removed, how its values are distributed, examples of removed pairs and the kept pairs
closest to the threshold, so that a threshold can be judged at a glance. Text of the corpus is never markup: it is
escaped, with invisible characters written as escapes, and cut after 400 characters.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template

from multihead.cleaning.filters import Rules
from multihead.cleaning.settings import FILTERS, REASONS, UNUSABLE, FilterName
from multihead.cleaning.statistics import BINS, Example, Histogram, Statistics
from multihead.text.vocabulary import visible

_LONGEST = 400
"""Characters of a text that are shown."""

WORDS: dict[str, str] = {
    UNUSABLE: "not UTF-8, an empty side, or a damaged record",
    "broken": "share of control characters and of characters that were lost in decoding",
    "length": "characters of the longer side",
    "ratio": "how many times as long, or as short, as the other side lets expect",
    "copy": "share of the target's words that also occur in the source",
    "urls": "share of the URLs and mail addresses that the other side lacks",
    "numbers": "share of the numbers that the other side lacks",
    "swapped": "how much each side resembles the other one's language, in nats per trigram",
    "leak": "share of a held-out pair's word pairs that the line has",
    "language": "probability that a side is in another language",
    "alignment": "nats per token that the target costs the model",
    "duplicate": "equal pairs up to this line",
    "near-duplicate": "pairs up to this line that differ in case, space, punctuation or forms of characters alone",
    "similar": "share of the sequences of four characters in common with an earlier pair",
}
"""What each filter measures."""


def cleaning_page(statistics: Statistics, rules: Rules, names: Sequence[str]) -> str:
    """The page.

    Args:
        statistics: of the corpus.
        rules: which filters were on, and their thresholds.
        names: of the files that were read.
    """
    sections = [_section(statistics, rules, reason) for reason in REASONS[1:] if _shown(statistics, rules, reason)]
    return Template(_file("clean.html")).substitute(
        title=f"{_escaped(names[0])} – multihead clean",
        style=_file("clean.css"),
        body="\n".join([_summary(statistics, rules, names), *sections]),
    )


def _file(name: str) -> str:
    return files("multihead.inspection").joinpath("page", name).read_text(encoding="utf-8")


def _shown(statistics: Statistics, rules: Rules, reason: str) -> bool:
    return bool(statistics.counts[reason]) or (reason != UNUSABLE and rules.active(_filter(reason)))


def _filter(reason: str) -> FilterName:
    return FILTERS[REASONS.index(reason) - 2]


def _summary(statistics: Statistics, rules: Rules, names: Sequence[str]) -> str:
    total = max(statistics.read, 1)
    rows = []
    for reason in REASONS[1:]:
        count, shown = statistics.counts[reason], _shown(statistics, rules, reason)
        limit = "" if reason == UNUSABLE else f"{rules.settings.threshold(_filter(reason)):g}" if shown else "off"
        if reason in statistics.idle:
            limit = f"off: {statistics.idle[reason]}"
        name = f'<a href="#{reason}">{reason}</a>' if shown else reason
        share = _percent(count / total) if count else "–"
        cells = [_cell(name), _number(f"{count:,}"), _number(share), _number(limit), _cell(WORDS[reason])]
        rows.append(cells)
    return f"""<p class="figure">{statistics.kept:,} of {statistics.read:,} pairs kept</p>
<p class="note">{_escaped(" + ".join(names))}. A pair is removed for the first of these filters that it fails: where
its value is greater than the threshold.</p>
{_table(["reason", "removed", "share", "threshold", "value"], rows)}"""


def _section(statistics: Statistics, rules: Rules, reason: str) -> str:
    parts = [f'<section id="{reason}">', f"<h2>{reason}</h2>", f'<p class="note">{_escaped(WORDS[reason])}</p>']
    if reason in statistics.histograms:
        name = _filter(reason)
        parts.append(_chart(statistics.histograms[name], rules.settings.threshold(name)))
    if found := statistics.examples(reason):
        parts += [f"<h3>Removed: {len(found):,} of {statistics.counts[reason]:,}</h3>", _examples(found)]
    if reason in statistics.histograms and (found := statistics.borderline(reason)):
        parts += ["<h3>Kept, closest to the threshold</h3>", _examples(found)]
    return "\n".join([*parts, "</section>"])


def _examples(found: Iterable[Example]) -> str:
    rows = [
        [
            _number(f"{one.line:,}"),
            _number("" if one.score is None else f"{one.score:.3g}"),
            _text(one.source),
            _text(one.target),
            _cell(_cut(one.detail)),
        ]
        for one in found
    ]
    return _table(["line", "value", "source", "target", ""], rows)


def _cut(text: str) -> str:
    return _escaped(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _escaped(text: str) -> str:
    return html.escape(visible(text))


def _percent(share: float) -> str:
    return "&lt;0.01%" if share < 0.0001 else f"{share:.2%}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(content: str) -> str:
    return f"<td>{content}</td>"


def _number(content: str) -> str:
    return f'<td class="number">{content}</td>'


def _text(content: str) -> str:
    return f'<td class="text" dir="auto">{_cut(content)}</td>'


_WIDTH, _HEIGHT, _BELOW = 736, 120, 20  # of a chart, and of the labels below it


def _chart(histogram: Histogram, threshold: float) -> str:
    """Bars of both kinds, on a scale of square roots: removed pairs are few, and have to be seen."""
    most = max(int((histogram.kept + histogram.removed).max()), 1)
    width = _WIDTH / BINS
    bars = []
    for place, (kept, removed) in enumerate(zip(histogram.kept.tolist(), histogram.removed.tolist(), strict=True)):
        low = _height(kept, most)
        for kind, bottom, top in (("kept", 0.0, low), ("removed", low, _height(kept + removed, most))):
            if top > bottom:
                span = f'x="{place * width:.1f}" width="{width - 1:.1f}" y="{_HEIGHT - top:.1f}"'
                bars.append(f'<rect class="{kind}" {span} height="{top - bottom:.1f}"/>')
    share = (threshold - histogram.low) / (histogram.high - histogram.low)
    place_of_limit = min(max(share, 0.0), 1.0) * _WIDTH
    return f"""<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT + _BELOW}" role="img" aria-label="Distribution">
{"".join(bars)}
<line x1="{place_of_limit:.1f}" x2="{place_of_limit:.1f}" y1="0" y2="{_HEIGHT}"/>
<text x="0" y="{_HEIGHT + 14}">{histogram.low:g}</text>
<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">{histogram.high:g} and more</text>
</svg>
<p class="key"><i></i>kept by this filter<i class="removed"></i>removed; the dashed line is the threshold</p>"""


def _height(count: int, most: int) -> float:
    return float((count / most) ** 0.5 * _HEIGHT)
