"""The section of a model card that shows a certificate."""

from __future__ import annotations

from multihead.interop.certificate import FILE, Certificate
from multihead.interop.comparing import BleuCheck

HEADING = "## Certificate"


def section(certificate: Certificate) -> str:
    """The section as Markdown."""
    if certificate.state == "not run":
        return f"{HEADING}\n\nNot run: {certificate.reason}.\n"
    program = f"{certificate.program} {certificate.program_version}"
    rows = [("lines", f"{certificate.lines}: {certificate.origin}"), ("weights", certificate.quantization)]
    if certificate.arithmetic:
        rows.append(("arithmetic of the comparison", certificate.arithmetic))
    scores, tokenizer = certificate.scores, certificate.tokenizer
    if scores is not None:
        rows.append(("log-probabilities, largest difference", f"{scores.largest:.3g} of {scores.tokens:,} tokens"))
        rows.append(("log-probabilities, mean difference", f"{scores.mean:.3g}"))
    for one in certificate.searches:
        name = "greedy" if one.beam == 1 else f"beam {one.beam}"
        rows.append((f"equal translations, {name}", f"{one.equal} of {one.lines}, and {one.near_ties} near ties"))
        if one.bleu is not None:
            rows.append((f"BLEU, {name}: multihead, {certificate.program}", _bleu(one.bleu)))
    if certificate.texts is not None:
        texts = certificate.texts
        rows.append(("equal texts", f"{texts.equal} of {texts.lines}, and {texts.near_ties} near ties"))
        if texts.bleu is not None:
            rows.append((f"BLEU of texts: multihead, {certificate.program}", _bleu(texts.bleu)))
    if tokenizer is not None:
        rows.append(("equal token ids", f"{tokenizer.equal_ids} of {tokenizer.lines} lines"))
        rows.append(("equal detokenized texts", f"{tokenizer.equal_texts} of {tokenizer.translations}"))
    rounding = certificate.rounding
    if rounding is not None:
        what = f"computed in {rounding.arithmetic}, against float32"
        rows.append((f"mean difference of log-probabilities, {what}", f"{rounding.mean:.3g}"))
        rows.append((f"equal translations, greedy, {what}", f"{rounding.equal_greedy} of {rounding.lines}"))
        rows.append((f"equal translations, beam, {what}", f"{rounding.equal_beam} of {rounding.lines}"))
        if rounding.bleu is not None:
            rows.append((f"BLEU, beam: float32, {rounding.arithmetic}", _bleu(rounding.bleu)))
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    text = (
        f"{HEADING}\n\nCompared by multihead {certificate.multihead} with {program}; all figures are in `{FILE}`.\n\n"
        f"| | |\n|---|---|\n{table}"
    )
    notes = (*certificate.other_rules, *certificate.remarks)
    if notes:
        text += "\nHow a search there differs from one here:\n\n" + "".join(f"* {note}\n" for note in notes)
    return text


def _bleu(check: BleuCheck) -> str:
    return f"{check.ours:.2f}, {check.theirs:.2f} (`{check.signature}`)"
