"""Tables of a bench whose runs go round by round, and of runs of faults, each by its description in bench/tables.toml."""

import functools
import itertools
import json
import os.path
import re
import statistics

import records
from written import FEW, between, counted, host_line, joined, markdown, number, share, wrapped


@functools.cache
def kept(folder):
    return json.loads((records.RUNS / folder / "figures.json").read_text(encoding="utf-8"))["parts"]


def pairs_apart(ends):
    """Those of some intervals that do not overlap, each with the ones behind it."""
    found = []
    for one, (low, high) in ends.items():
        behind = itertools.dropwhile(lambda name: name != one, ends)
        if apart := [two for two in behind if high < ends[two][0] or ends[two][1] < low]:
            found.append(f"{one} from {joined(apart)}")
    return "; ".join(found) or "none"


class Rounds:
    """A table of one part of a bench: each cell is the median over the rounds of one of its rows."""

    def __init__(self, spec):
        self.spec = spec
        self.folder = records.sets()[spec["rounds"]]
        self.part = kept(self.folder)[spec["part"]]
        self.labels = spec.get("labels", {})
        self.runs = self.part["runs"]
        self.few = len({run["round"] for run in self.runs}) < FEW
        self.rows = [self.factor(row) for row in spec["rows"]]
        self.columns = [{key: spec[key] for key in ("minus", "scale", "unit", "digits") if key in spec} | column
                        for column in spec["columns"]]
        self.sizes = set()

    def factor(self, asked):
        """A factor's head and levels, by default those of the runs in their order."""
        asked = {"factor": asked} if isinstance(asked, str) else asked
        name = asked["factor"]
        return {"head": name, "levels": list(dict.fromkeys(run[name] for run in self.runs if name in run)), **asked}

    def cell(self, column, levels, other=None):
        """The runs of a cell that have a value."""
        wanted = levels | self.spec.get("where", {}) | column.get("where", {}) | (other or {})
        found = [run for run in self.runs if "error" not in run and run.items() >= wanted.items()]
        # A reader's node is killed twice a round.
        if len(found) > 2 * len({run["round"] for run in found}):
            raise SystemExit(f"{self.folder}: several cells have {wanted}")
        return found

    def values(self, column, runs):
        found = [records.at(run, column["field"]) for run in runs]
        # Where nothing arrived, nothing went through.
        found = [column.get("nothing") if value is None else value for value in found]
        return [value * column.get("scale", 1) for value in found if value is not None]

    def ends(self, values):
        return (min(values), max(values)) if self.few else records.median_interval(values)

    def is_blank(self, column, levels):
        return "blank" in column and levels.items() >= column["blank"].items()

    def fill(self, column, levels, loses):
        if self.is_blank(column, levels):
            return ""
        runs = self.cell(column, levels)
        values = self.values(column, runs)
        if not values:
            return "–"
        self.sizes.add(len(values))
        digits, unit = column.get("digits"), column.get("unit", "")
        if "minus" in column:
            if not (base := self.values(column, self.cell(column, levels, column["minus"]))):
                return "–"
            if self.few:
                raise SystemExit(f"tables: {self.spec['name']}: a difference of fewer than {FEW} rounds")
            ends = records.difference_interval(values, base)
            return between(statistics.median(values) - statistics.median(base), *ends, digits, unit)
        text = between(statistics.median(values), *self.ends(values), digits, unit)
        return f"{text} / {self.arrived(runs)}" if loses and self.is_delay(column) else text

    @staticmethod
    def is_delay(column):
        return column["field"].startswith("delay_ns")

    @staticmethod
    def arrived(runs):
        return share(*(sum(run[field] for run in runs) for field in ("came", "sent")))

    def loses(self, levels):
        cells = itertools.product(levels, filter(self.is_delay, self.columns))
        return any(self.arrived(self.cell(column, each)) != "all" for each, column in cells)

    def lines(self):
        names = [row["factor"] for row in self.rows]
        levels = [dict(zip(names, found, strict=True)) for found in itertools.product(*(row["levels"] for row in self.rows))]
        if self.spec.get("sparse"):
            levels = [each for each in levels if any(self.cell(column, each) for column in self.columns)]
        loses = self.loses(levels)
        rows, sizes = [], []
        for each in levels:
            self.sizes = set()
            cells = [self.fill(column, each, loses) for column in self.columns]
            rows.append([self.label(level) for level in each.values()] + cells)
            sizes.append(self.sizes)
        heads = [row["head"] for row in self.rows] + [column["head"] for column in self.columns]
        self.sizes = set().union(*sizes)
        counted(heads, rows, sizes)
        apart = ["", *self.apart(levels)] if "apart" in self.spec else []
        return [wrapped(self.heading(loses)), "", *markdown(heads, rows), *apart, "", wrapped(self.parameters())]

    def label(self, level):
        return self.labels.get(str(level)) or (number(level, 0) if isinstance(level, int) else level)

    def heading(self, loses):
        how = "difference of the medians" if any("minus" in column for column in self.columns) else "median"
        of = "n" if len(self.sizes) > 1 else f"n = {max(self.sizes)}"
        ends = "in brackets the lowest and the highest one" if self.few else "in brackets the 95 % interval"
        arrived = "; after the stroke the share of messages that arrived" if loses else ""
        title = self.spec["title"].format_map(self.part["settings"])
        if max(self.sizes) == 1:
            return f"**{title}**; n = 1 run a cell{arrived}."
        return f"**{title}**; {how} of {of} runs, {ends}{arrived}."

    def apart(self, levels):
        """The lines on rows whose intervals do not overlap, of some levels of the first factor."""
        factor, some = self.rows[0]["factor"], self.spec["apart"]
        others = {tuple((name, level) for name, level in each.items() if name != factor): None for each in levels}
        prefix = os.path.commonprefix(some)
        yield f"Of {prefix}{joined(one.removeprefix(prefix) for one in some)} these differ, as their intervals do not overlap:"
        yield ""
        for other in map(dict, others):
            parts = []
            for column in self.columns:
                if column.get("compared", True) and not self.is_blank(column, other):
                    found = {one: self.values(column, self.cell(column, {factor: one, **other})) for one in some}
                    ends = {one.removeprefix(prefix): self.ends(values) for one, values in found.items() if values}
                    parts.append(f"{column['head']}: {pairs_apart(ends)}")
            of = [f"{row['head']} {self.label(other[row['factor']])}, " for row in self.rows if row["factor"] in other]
            for text in [f"{''.join(of)}{'. '.join(parts)}"] if of else parts:
                yield wrapped(f"- {text}.", "  ")

    def parameters(self):
        part = self.part
        host = part["machine"]
        failed = sum("error" in run for run in self.runs)
        changes = "" if part["is_clean"] else " with changes that are not committed"
        parts = [f"`bench/runs/{self.folder}/figures.json`, {part['date']}", self.spec["settings"].format_map(part["settings"]),
                 f"{host_line(host)}, {part['file_system']}",
                 ", ".join(f"{name} {version}" for name, version in part["versions"].items()),
                 f"revision {host['revision'].removesuffix('-dirty')}{changes}", f"{failed or 'none'} of {len(self.runs):,} runs failed"]
        return f"Parameters: {'; '.join(parts)}."


class Faults:
    """A table of runs of faults, a column for each: what the program printed at its end, below a line on how it was run."""

    def __init__(self, spec):
        self.spec = spec
        self.folder = records.sets()[spec["faults"]]
        paths = sorted((records.RUNS / self.folder).glob("*.txt"), key=lambda path: int(path.stem))
        self.runs = {path: path.read_text(encoding="utf-8") for path in paths}

    def lines(self):
        heads = [""] + [self.head(path, text) for path, text in self.runs.items()]
        rows = [[row["head"]] + [self.fill(row, path, text) for path, text in self.runs.items()] for row in self.spec["rows"]]
        how = {key: joined(self.find(rf"\A.*\b{key}: ([^;\n]+)", path, text)[1] for path, text in self.runs.items())
               for key in ("date", "build", "machine")}
        parameters = f"Parameters: `bench/runs/{self.folder}`, {how['date']}; {how['build']} build; {how['machine']}."
        return [wrapped(f"**{self.spec['title']}**; n = 1 run a column."), "", *markdown(heads, rows), "", wrapped(parameters)]

    @staticmethod
    def find(pattern, path, text):
        if not (found := re.search(pattern, text)):
            raise SystemExit(f"tables: {path.relative_to(records.ROOT)} has nothing like `{pattern}`")
        return found

    def head(self, path, text):
        """The seed and the length, as the program printed them at its beginning."""
        seconds = self.find(rf"(?m)^MQ_SEED={path.stem} MQ_FAULTS_S=(\d+)$", path, text)[1]
        return f"seed {path.stem}, {int(seconds):,} s"

    def fill(self, row, path, text):
        if "none" in row and not re.search(row["find"], text):
            return row["none"]
        found = self.find(row["find"], path, text)
        if row.get("sum"):
            return number(sum(map(int, found.groups())), 0)
        values = [number(int(each) * row.get("scale", 1), 0) if each.isdecimal() else each for each in found.groups()]
        return row.get("form", ", ".join(["{}"] * len(values))).format(*values) + row.get("unit", "")
