"""The log: lines up to a rate, then a count of those left out."""

from __future__ import annotations

from multihead.serving.log import LINES_PER_SECOND, MAX_LINE, Log


def test_lines_above_the_rate_are_counted_instead() -> None:
    written: list[str] = []
    now = [0.0]
    log = Log(written.append, lambda: now[0])
    for number in range(1_000):
        log(f"line {number}")
    most = int(10 * LINES_PER_SECOND)
    assert written == [f"line {number}" for number in range(most)]
    now[0] += 3 / LINES_PER_SECOND
    log("next")
    assert written[most:] == [f"{1_000 - most} lines were omitted here", "next"]
    for _ in range(60_000):
        now[0] += 0.001
        log("again")
    assert len(written) <= most + 2 + 61 * LINES_PER_SECOND
    left_out = sum(int(line.split()[0].replace(",", "")) for line in written if "omitted" in line)
    assert len([line for line in written if "omitted" not in line]) + left_out >= 61_000 - 60_000 * 0.01


def test_a_line_is_one_line_of_limited_length() -> None:
    written: list[str] = []
    Log(written.append)("a\nb\n" + "c" * 5_000)
    assert written[0].startswith("a b c")
    assert len(written[0]) == MAX_LINE
