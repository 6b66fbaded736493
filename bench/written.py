"""Values and tables as the pages of docs/results have them."""

import math
import textwrap

FEW = 5  # repetitions below which the lowest and the highest one stand in the place of an interval


def number(value, digits=None):
    """A value with three digits, at most two of them behind the point; or with a given number behind it."""
    if digits is None:
        digits = min(2, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2
    return f"{value:,.{digits}f}"


def decimals(value):
    return len(number(value).partition(".")[2])


def between(value, low, high, digits, unit):
    digits = decimals(value) if digits is None else digits
    found, low, high = (number(each, digits) for each in (value, low, high))
    return f"{found}{unit}" if found == low == high else f"{found}{unit} ({low} to {high})"


def share(came, sent):
    """The share of messages that arrived, rounded down."""
    percent = 100 * came / sent if sent else 100
    if percent == 100:
        return "all"
    return f"{math.floor(percent * 10) / 10:.1f} %" if percent > 99 else f"{math.floor(percent)} %"


def joined(values):
    values = list(dict.fromkeys(values))
    return " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def host_line(host):
    """The machine of a bench, as brokers/machine.py describes it."""
    return f"{host['usable']} processors ({host['cpu']}), {host['memory_bytes'] / 1e9:.1f} GB, {host['kernel']}"


def counted(heads, rows, sizes):
    """Adds a column with n, the numbers of runs of a row's cells, where not all cells have the same."""
    if len(set().union(*sizes)) > 1:
        heads.append("n")
        for row, size in zip(rows, sizes, strict=True):
            row.append(" to ".join(str(end) for end in sorted({min(size), max(size)})) if size else "0")


def wrapped(text, indent=""):
    return textwrap.fill(text, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def markdown(heads, rows):
    """The lines of a table; the marks of an empty cell have one space between them."""
    rows = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in [heads, *rows]]
    return [rows[0], "|" + "---|" * len(heads), *rows[1:]]
