"""Results that are kept in bench/runs, and pages whose figures are written from them."""

import base64
import difflib
import functools
import gzip
import json
import math
import pathlib
import random
import statistics
import struct
import sys
import tomllib
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ROOT / "bench/runs"
RESAMPLES = 4_000
# Warnings for which `mqbench campaign` repeats a run.
DISTURBED = {"generator-late", "link-off-profile", "energy-gaps"}


@functools.cache
def tables():
    """The descriptions of all tables, and the sets that they are taken from."""
    return tomllib.loads((ROOT / "bench/tables.toml").read_text(encoding="utf-8"))


def sets():
    """The folder in bench/runs of each campaign."""
    return tables()["runs"]


class Campaign:
    """The runs of a campaign that count: the last attempt of each repetition of each cell."""

    def __init__(self, name):
        self.name, self.folder = name, sets()[name]
        last, self.attempts = {}, set()
        [path] = [path for path in (RUNS / self.folder / "records").iterdir() if path.name.split(".jsonl")[0] == name]
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for run in map(json.loads, lines):
                last[tuple(sorted(run["levels"].items())), run["repetition"]] = run
                self.attempts.add(identity(run))
        self.runs = list(last.values())
        manifest = json.loads((RUNS / self.folder / "set.json").read_text(encoding="utf-8"))["manifest"]
        self.date, self.revision = manifest["started_at"][:10], manifest["program"]["revision"]

    @functools.cached_property
    def file(self):
        """The campaign's file as it was."""
        return tomllib.loads((RUNS / self.folder / "campaigns" / f"{self.name}.toml").read_text(encoding="utf-8"))

    def cell(self, **levels):
        """The runs of the cell with these levels, in the order of their repetitions."""
        runs = [run for run in self.runs if run["levels"].items() >= levels.items()]
        if not runs:
            raise SystemExit(f"{self.folder}/{self.name}: no run has {levels}")
        if len({tuple(sorted(run["levels"].items())) for run in runs}) > 1:
            raise SystemExit(f"{self.folder}/{self.name}: several cells have {levels}")
        return sorted(runs, key=lambda run: run["repetition"])

    def values(self, metric, **levels):
        """One value a run of the cell with these levels."""
        return [run["outcome"]["metrics"][metric] for run in self.cell(**levels)]


def identity(run):
    """Tells attempts apart, of several campaigns as well: a run that two of them share has the same cell, and all cells of a
    repetition may have one seed."""
    cell = json.dumps(run["cell"], sort_keys=True)
    return tuple(sorted(run["levels"].items())), cell, run["repetition"], run["attempt"], run["seed"]


def at(run, path):
    """A field of a run by its path, such as `delay_ns.p50`; `None` where a run has none."""
    for key in path.split("."):
        run = run.get(key) if run else None
    return run


def is_disturbed(run):
    """True if the machine disturbed a run that did not fail; mqbench repeats both kinds."""
    outcome = run["outcome"]
    return not outcome["error"] and any(warning["kind"] in DISTURBED for warning in outcome["warnings"])


def has_failed(run):
    """True if a run has no values."""
    return bool(run["outcome"]["error"])


def counts(histogram):
    """The values of a recorded HdrHistogram (V2, compressed) with the number of each; its values are at most that much lower."""
    packed = zlib.decompress(base64.b64decode(histogram)[8:])
    digits, lowest = struct.unpack(">xxxxxxxxxxxxIQ", packed[:24])
    magnitude = int(math.log2(lowest))
    half = math.ceil(math.log2(2 * 10 ** digits)) - 1
    index, at = 0, 40
    while at < len(packed):
        # ZigZag LEB128, nine bytes at most: a count, or below 0 a number of values that did not occur.
        number, shift = 0, 0
        while True:
            byte = packed[at]
            at += 1
            number |= (byte if shift == 56 else byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift == 63:
                break
        number = (number >> 1) ^ -(number & 1)
        if number < 0:
            index -= number
            continue
        bucket = max(0, (index >> half) - 1)
        if number:
            yield (index - (bucket << half)) << (bucket + magnitude), number
        index += 1


@functools.cache
def drawn(number, seed):
    """The middle ranks of bootstrap samples of a number of runs; the same each time."""
    draws = random.Random(seed)
    samples = (sorted(draws.choices(range(number), k=number)) for _ in range(RESAMPLES))
    return [(sample[(number - 1) // 2], sample[number // 2]) for sample in samples]


def medians(values, seed=1):
    """The medians of bootstrap samples of runs."""
    ordered = sorted(values)
    return [(ordered[low] + ordered[high]) / 2 for low, high in drawn(len(ordered), seed)]


def ends(found):
    """The 95 % interval of bootstrap samples."""
    found = sorted(found)
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def mean_interval(values):
    draws = random.Random(1)
    return ends(statistics.fmean(draws.choices(values, k=len(values))) for _ in range(RESAMPLES))


def median_interval(values):
    return ends(medians(values))


def ratio_interval(values, base):
    """The interval of the ratio of two cells' medians, whose runs are drawn apart."""
    return ends(value / other for value, other in zip(medians(values), medians(base, seed=2), strict=True))


def difference_interval(values, base):
    """The interval of the difference of two cells' medians, whose runs are drawn apart."""
    return ends(value - other for value, other in zip(medians(values), medians(base, seed=2), strict=True))


def block(text, begin, end, new, where):
    """A page with another text between two marks."""
    before, found, rest = text.partition(begin)
    old, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{where} lacks the line `{(end if found else begin).strip()}`")
    return before + begin + new + end + after


def finish(program, pages, check):
    """Writes pages, or with `check` fails with the difference."""
    wrong = []
    for path, (old, new) in pages.items():
        if not check:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            name = str(path.relative_to(ROOT))
            wrong.append(name)
            sys.stderr.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "bench/runs"))
    if wrong:
        sys.exit(f"{program}: {', '.join(wrong)}: other figures than the kept results; `bench/{program}` writes them")
