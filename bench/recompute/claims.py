"""Computes the measured value of every claim from a set's raw records, apart from mqbench, and compares.

    claims.py SET REPORT.json

SET is a folder of bench/runs, REPORT.json what `mqbench report SET --json` printed. Only the levels, metrics and forms of the
claims are taken from the report; values and intervals come from SET/records alone, by NumPy and SciPy. Exits with 1 if a
claim differs.
"""

import collections
import gzip
import json
import pathlib
import sys
import tomllib

import numpy
from scipy import stats

CONFIDENCE = 0.9


def records(folder, campaign):
    """The runs that count: the last attempt of each repetition of each cell."""
    last = {}
    for path in sorted((folder / "records").glob(f"{campaign}.jsonl*")):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as lines:
            for line in lines:
                run = json.loads(line)
                last[tuple(sorted(run["levels"].items())), run["repetition"]] = run
    return list(last.values())


class Campaign:
    def __init__(self, folder, name):
        self.runs = records(folder, name)
        with open(folder / "campaigns" / f"{name}.toml", "rb") as file:
            self.file = tomllib.load(file)

    def levels(self, factor):
        """In the order of the file."""
        return [as_text(level) for level in self.file["factors"][factor]]

    def having(self, levels):
        def has(run, factor, level):
            own = run["levels"].get(factor, run["cell"].get(factor))
            return as_text(own) == level

        return [run for run in self.runs if all(has(run, *one) for one in levels.items())]

    def values(self, levels, metric):
        found = (run["outcome"]["metrics"].get(metric) for run in self.having(levels))
        return [value for value in found if value is not None and numpy.isfinite(value)]

    def cells(self, levels):
        return {tuple(sorted(run["levels"].items())) for run in self.having(levels)}

    def baseline(self, levels):
        """The cell of TLS, or TCP, beside one of QUIC: the same levels but for those that follow from the transport."""
        transports = self.levels("transport")
        other = dict(levels, transport="tls" if "tls" in transports else "tcp")
        if not self.having(other):
            other.pop("resumption", None)
        return other

    def estimate(self, levels, metric):
        """Mean, its variance, and degrees of freedom; the last two are None with one run a cell."""
        ratio, _, name = metric.rpartition(":")
        if ratio.startswith("xi"):
            levels = dict(levels)
            levels.setdefault("transport", "quic")
        parts = []
        for cell in sorted(self.cells(levels)):
            cell = dict(cell)
            if ratio == "xi_s21":
                part = quotient(of(self.values(cell, name)), of(self.values(self.baseline(cell), name)))
            elif ratio == "spread":
                values = numpy.array(self.values(cell, name))
                part = of(abs(values - numpy.median(values))) if len(values) else None
            elif ratio == "xi_w20":
                part = of(self.paired(cell, name))
            else:
                part = of(self.values(cell, name))
            parts.append(part)
        parts = [part for part in parts if part]
        if not parts:
            return None
        mean = numpy.mean([part[0] for part in parts])
        if any(part[1] is None for part in parts):
            return mean, None, None
        return mean, *welch([(part[1] / len(parts) ** 2, part[2]) for part in parts])

    def paired(self, cell, metric):
        beside = {run["repetition"]: run for run in self.having(self.baseline(cell))}
        ratios = []
        for run in sorted(self.having(cell), key=lambda run: run["repetition"]):
            other = beside.get(run["repetition"])
            values = [one and one["outcome"]["metrics"].get(metric) for one in (run, other)]
            if all(values):
                ratios.append(values[0] / values[1])
        return ratios


def as_text(level):
    if isinstance(level, bool):
        return str(level).lower()
    return "null" if level is None else str(level)


def of(values):
    if len(values) == 0:
        return None
    mean = numpy.mean(values)
    if len(values) < 2:
        return mean, None, None
    return mean, numpy.var(values, ddof=1) / len(values), len(values) - 1


def welch(terms):
    total = sum(variance for variance, _ in terms)
    squares = sum(variance**2 / degrees for variance, degrees in terms)
    return total, total**2 / squares if squares else min(degrees for _, degrees in terms)


def quotient(a, b):
    if not a or not b:
        return None
    ratio = a[0] / b[0]
    if a[1] is None or b[1] is None:
        return ratio, None, None
    relative, degrees = welch([(one[1] / one[0] ** 2, one[2]) for one in (a, b)])
    return ratio, relative * ratio**2, degrees


def measured(claim, campaign):
    at = claim["at"]
    if claim["form"] == "value":
        found = campaign.estimate(at, claim["metric"])
    else:
        if claim["form"] == "trend":
            factor, levels = claim["along"], campaign.levels(claim["along"])
            sides = levels[-1], levels[0]
        else:
            factor, sides = claim["compare"]["factor"], (claim["compare"]["of"], claim["compare"]["with"])
        found = quotient(*(campaign.estimate({**at, factor: side}, claim["metric"]) for side in sides))
    if not found:
        return None
    value, variance, degrees = found
    less = 1 if claim["form"] == "relative" else 0
    if variance is None:
        return value - less, value - less, value - less
    reach = numpy.exp(stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * numpy.sqrt(variance) / value)
    return value - less, value / reach - less, value * reach - less


def main(folder, report):
    folder = pathlib.Path(folder)
    campaigns = {}
    differing, intervals = [], collections.Counter()
    for one in json.loads(pathlib.Path(report).read_text())["claims"]:
        claim, ours = one["claim"], one["measured"]
        if ours is None:
            continue
        name = claim["campaign"]
        campaign = campaigns.setdefault(name, None) or Campaign(folder, name)
        campaigns[name] = campaign
        theirs = measured(claim, campaign)
        if theirs is None or not numpy.allclose(theirs, [ours[end] for end in ("estimate", "low", "high")], rtol=1e-6):
            differing.append(f"{claim['id']}: {theirs}, and mqbench says {ours}")
        intervals["with an interval" if one["of"] == "repetitions" else "of one run"] += 1
    print(", ".join(f"{count} claims {what}" for what, count in sorted(intervals.items())), "computed again")
    print("\n".join(differing))
    return 1 if differing or intervals["with an interval"] < 20 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
