"""Render an explanation as a self-contained HTML page or as terminal text.

The content of an explanation is plain data in the schema of docs/explain.md, made by `judging.explain`. The page loads
no other file and nothing from the network. Sentences, words, tokens and hypotheses are written here as HTML, readable
without JavaScript; the scripts in `page/` add links between words, attention maps of every head, and the search tree.

Text from users is never markup: it is escaped here, and the data, which the page contains as JSON, have no character
that could end their element. `explanation_text` shows only the translation and its words.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from multihead.attention.drawing import display_width
from multihead.text.vocabulary import visible

_SCRIPTS = ("common", "words", "maps", "tree")
_SELF_ATTENTION = {"encoder": "the source", "decoder": "the output"}
_MOST_FOUND = 10  # finished hypotheses in the table
_LEAST = 0.001  # probability of an alternative that is shown; `common.js` has the same


def explanation_page(content: dict[str, Any]) -> str:
    """A self-contained HTML page.

    Args:
        content: the result of `multihead.judging.explain.Explanation.content`.
    """
    sections = (_attention_section, _search_section, _words_section, _tokens_section, _shapes_section)
    scripts = [_file(f"{name}.js") for name in _SCRIPTS]
    return Template(_file("explain.html")).substitute(
        title=f"{escape_html(content['source'])} – multihead explain",
        style=_file("explain.css"),
        body="\n".join([_sentences(content), _WORD_PANEL, *(section(content) for section in sections)]),
        footer=_footer(content),
        data=_script_data(content),
        script="\n".join(scripts),
    )


def escape_html(text: str) -> str:
    """A text as HTML, with invisible characters written as escapes."""
    return html.escape(visible(text))


def html_percent(share: float) -> str:
    """A share as HTML: ``94%``; small shares have a decimal place and never become 0."""
    if 0 < share < 0.001:
        return "&lt;0.1%"
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _file(name: str) -> str:
    return files("multihead.inspection").joinpath("page", name).read_text(encoding="utf-8")


def _script_data(content: dict[str, Any]) -> str:
    """The data of the scripts, with weights in thousandths and without characters that mean anything to HTML."""
    attention = {
        kind: one and {**one, "layers": _thousandths(one["layers"])} for kind, one in content["attention"].items()
    }
    text = json.dumps({**content, "attention": attention, "shapes": None}, ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _thousandths(weights: Any) -> Any:
    return [_thousandths(one) for one in weights] if isinstance(weights, list) else round(1000 * weights)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; cells are complete elements."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(content: str, kind: str = "") -> str:
    return f'<td class="{kind}" dir="auto">{content}</td>' if kind else f'<td dir="auto">{content}</td>'


def _probability_cell(probability: float) -> str:
    """A probability on a background that is warmer the lower it is."""
    return f'<td><span class="doubt" style="--doubt: {1 - probability:.3f}">{html_percent(probability)}</span></td>'


def _alternatives(found: Sequence[dict[str, Any]]) -> str:
    shown = (one for one in found if one["probability"] >= _LEAST)
    return " · ".join(f"{escape_html(one['text'])}&nbsp;{html_percent(one['probability'])}" for one in shown)


def _sentences(content: dict[str, Any]) -> str:
    source, target = content["languages"]
    read = "".join(_button(word, "") for word in content["source_words"])
    written = "".join(
        _button(word["text"], html_percent(word["probability"]), f' style="--doubt: {1 - word["probability"]:.3f}"')
        for word in content["words"]
    )
    warnings = [f'<p class="warning">{escape_html(line)}</p>' for line in _warnings(content)]
    output = "Translation, given" if content["given"] else "Translation"
    return f"""<section class="pair" aria-label="Source and translation">
<p class="side" id="source-name">Source{_language(source)}</p>
<div class="sentence source" dir="auto" role="group" aria-labelledby="source-name">{read}</div>
<p class="side" id="target-name">{output}{_language(target)}</p>
<div class="sentence target" dir="auto" role="group" aria-labelledby="target-name">{written}</div>
</section>
{"".join(warnings)}
<p class="note">Below each word is its probability; the less sure the model was, the warmer the line.
<span class="scripted">Point at a word, or move between words with the arrow keys, to see what it attends to; choose one
to see its alternatives.</span></p>"""


def _button(text: str, below: str, style: str = "") -> str:
    return f'<button type="button" class="word"{style}><span>{escape_html(text)}</span><small>{below}</small></button>'


def _language(code: str | None) -> str:
    return f" · {escape_html(code)}" if code else ""


def _warnings(content: dict[str, Any]) -> list[str]:
    found = content["found"][0]
    warnings = [*_about_heads(content), *([found["warning"]] if found["warning"] else [])]
    if not content["given"] and not found["finished"]:
        warnings.append("The length limit cut this translation: it is incomplete.")
    if content["given"]:
        warnings.append(f"The model's own translation: {found['text']}")
    if content["word_attention"] is None:
        warnings.append("This model has no attention to the source, so words are not linked.")
    return warnings


_WORD_PANEL = """<section class="scripted panel" aria-label="The chosen word" aria-live="polite">
<div class="columns"><div id="alternatives"></div><div id="choices"></div></div>
</section>"""


def _attention_section(content: dict[str, Any]) -> str:
    kinds = [kind for kind, one in content["attention"].items() if one is not None]
    scripted = """<div class="scripted">
<div class="controls"><div class="segments" id="kinds" role="group" aria-label="Which attention"></div></div>
<div class="maps"><div class="wide"><div class="thumbs" id="thumbs"></div></div>
<div><div class="wide" id="map"></div><output id="told"></output></div></div>
</div>"""
    if not kinds:
        return ""
    missing = [name for kind, name in _SELF_ATTENTION.items() if kind not in kinds]
    note = f"This model has no attention within {' or '.join(missing)}." if missing else ""
    return f"""<section id="attention">
<h2>Attention</h2>
<p class="note">Each row is a word or token that is written or read, each column what it attends to. Cells show
percentages of 10 and more; point at a cell for a smaller one.
<span class="scripted">Every layer and head is a small picture: choose one to enlarge it.</span> {note}</p>
{scripted}
<div class="plain">{_word_attention_table(content)}</div>
</section>"""


def _word_attention_table(content: dict[str, Any]) -> str:
    """Without scripts: the attention between words, averaged over the heads of one layer."""
    if not content["word_attention"]:
        return ""
    rows = (
        [
            f'<th scope="row">{escape_html(word["text"])}</th>',
            *map(_weight_cell, weights),
        ]
        for word, weights in zip(content["words"], content["word_attention"], strict=True)
    )
    return _table(["", *map(escape_html, content["source_words"])], rows).replace("<table>", '<table class="map">')


def _weight_cell(weight: float) -> str:
    strong, share = ' class="strong"' if weight > 0.6 else "", html_percent(weight)
    shown = f"{100 * weight:.0f}" if weight >= 0.095 else ""
    return f'<td{strong} style="--weight: {weight:.3f}" title="{share}" aria-label="{share}">{shown}</td>'


def _search_section(content: dict[str, Any]) -> str:
    settings = content["search"]["settings"]
    groups = f" in {settings['groups']} groups" if settings["groups"] > 1 else ""
    ended = sorted(
        (node for node in content["search"]["nodes"] if node["score"] is not None),
        key=lambda node: (node["rank"] is None, node["rank"], -node["score"]),
    )
    rows = (
        [
            _cell(str(node["rank"] or "–"), "number"),
            _cell(escape_html(node["text"])),
            _cell(f"{node['score']:.3f}", "number"),
            _cell(f"{node['log_probability']:.2f}", "number"),
        ]
        for node in ended[:_MOST_FOUND]
    )
    return f"""<section id="search">
<h2>The search</h2>
<p class="note">A beam of {settings["beam"]}{groups}: after each token, as many hypotheses are kept, the most probable
ones, and the others are pruned. Finished hypotheses are ranked by score: log-probability divided by a length
penalty.</p>
<div class="scripted">
<div class="controls"><label>Up to step <input type="range" id="until" min="1" step="1"></label> <span id="step"></span>
<label><input type="checkbox" id="all"> also candidates that never entered the beam</label></div>
<div class="tree" id="tree" tabindex="0" role="tree" aria-label="Hypotheses of the search"></div>
<output id="fate"></output>
<p class="note legend"><b>Results</b> are at the top; <i>×</i> marks pruned hypotheses. Arrow keys move between
tokens.</p>
</div>
{_table(["", "Finished hypotheses", "score", "log&nbsp;p"], rows)}
</section>"""


def _words_section(content: dict[str, Any]) -> str:
    sources, weights = content["source_words"], content["word_attention"]
    links = {target: source for source, target in content["links"]}
    rows = (
        [
            _cell(escape_html(word["text"])),
            _probability_cell(word["probability"]),
            _cell(
                f"{escape_html(sources[links[place]])}&nbsp;{html_percent(weights[place][links[place]])}"
                if place in links
                else ""
            ),
            _cell(_alternatives(word["alternatives"])),
        ]
        for place, word in enumerate(content["words"])
    )
    return f"""<section id="words"><h2>Word by word</h2>
<p class="note">The probability of a word includes that it ends there; an alternative is another token, completed by
its most probable continuation.</p>
{_table(["Word", "Probability", "Attends to", "Alternatives"], rows)}
</section>"""


def _tokens_section(content: dict[str, Any]) -> str:
    rows = (
        [
            _cell(escape_html(piece["text"]), "mono"),
            _probability_cell(piece["probability"]),
            _cell(str(piece["rank"]), "number"),
            _cell(_alternatives(piece["candidates"]), "mono"),
        ]
        for piece in content["pieces"]
    )
    return f"""<section id="tokens"><details><summary>Token by token</summary>
{_table(["Token", "Probability", "Rank", "Most probable here"], rows)}
</details></section>"""


def _shapes_section(content: dict[str, Any]) -> str:
    return f"""<section id="shapes"><details><summary>Tensor shapes</summary>
<pre>{html.escape(content["shapes"]["table"])}</pre>
</details></section>"""


def _footer(content: dict[str, Any]) -> str:
    return (
        f"{escape_html(content['model'])}. log p(translation | source) = {content['log_probability']:.3f}, "
        f"score {content['score']:.3f}. Nothing on this page is loaded from anywhere else."
    )


_SHOWN_ALTERNATIVES = 3  # per word


def explanation_text(content: dict[str, Any]) -> str:
    """The translation, then a table of its words: probability, most attended source word, alternatives.

    Args:
        content: the result of `multihead.judging.explain.Explanation.content`.
    """
    links = {target: source for source, target in content["links"]}
    rows = [("word", "", "looked at", "", "could have been")]
    for place, word in enumerate(content["words"]):
        source = links.get(place)
        attended = ("", "")
        if source is not None:
            attended = content["source_words"][source], format_percent(content["word_attention"][place][source])
        alternatives = [other for other in word["alternatives"] if other["probability"] >= _LEAST]
        others = (f"{one['text']} {format_percent(one['probability'])}" for one in alternatives[:_SHOWN_ALTERNATIVES])
        rows.append((word["text"], format_percent(word["probability"]), *attended, " · ".join(others)))
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(display_width(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = (
        "  ".join(_pad(cell, width, at) for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in shown
    )
    return "\n".join([visible(content["translation"]), *_about_heads(content), "", *(line.rstrip() for line in lines)])


def _about_heads(content: dict[str, Any]) -> list[str]:
    """What the model says with the heads that were left out."""
    whole = content["whole"]
    if whole is None:
        return []
    return [
        f"without {', '.join(content['left_out'])}: log p {content['log_probability']:.2f}",
        f"with all heads: log p {whole['log_probability']:.2f}; their translation: {visible(whole['translation'])}",
    ]


def format_percent(share: float) -> str:
    """A share in whole percent; small shares do not become 0."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _pad(cell: str, width: int, column: int) -> str:
    """Pad a cell; percentages are aligned to the right."""
    space = " " * (width - display_width(cell))
    return space + cell if column in (1, 3) else cell + space
