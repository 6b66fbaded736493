"""A bench of parts, each of which measures shapes in turns: what `bench/cluster` and `bench/relay` have in common."""

import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from brokers.machine import build, machine, machine_line
from brokers.shapes import Failed, Processes
from records import at


class Parts:
    """A bench: its class has a method for each part, which yields the runs of a shape."""

    NAME = ""
    SCHEMA = ""
    # Programs that have to be in PATH.
    NEEDS = ()
    PACKAGES = ("mqbroker",)
    EXAMPLES = ("across",)
    # The shapes that each part measures, by a function of their names.
    PARTS = {}
    # The columns that are printed of each part: a field, and by what it is multiplied.
    SHOWN = {}
    # Settings that no option changes.
    SETTINGS = {}

    def __init__(self, asked, shapes):
        """`shapes` makes, of the folder of the programs, an object with `all()` and `versions()`."""
        self.asked = asked
        self.built = (asked.built or build(self.PACKAGES, self.EXAMPLES)).resolve()
        self.started = shapes(self.built)
        self.shapes = self.started.all()

    def rounds(self, part):
        """The runs of a part after each round: a run has its round and its shape, and one that failed has the reason."""
        names, runs = [shape for shape in self.shapes if self.PARTS[part](shape)], []
        for number in range(self.asked.rounds if names else 0):
            # Nobody is always first.
            first = number % len(names)
            for shape in names[first:] + names[:first]:
                where = {"round": number + 1, "shape": shape}
                try:
                    for run in getattr(self, part)(shape):
                        runs.append(where | run)
                except Failed as why:
                    runs.append(where | {"error": str(why)})
                    print(f"FAILED: {part}, {shape}: {why}", file=sys.stderr)
                print(f"{time.strftime('%T')} {part}, round {number + 1}, {shape}", file=sys.stderr)
            yield runs

    def settings(self):
        """Settings that options change."""
        return {"rounds": self.asked.rounds, "seconds": self.asked.seconds}

    def taken(self):
        """How a part is taken, from its beginning on."""
        host = machine()
        return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": host, "file_system": file_system(self.asked.folder),
                "is_clean": not host["revision"].endswith(("-dirty", "unknown")), "versions": self.started.versions(),
                "settings": self.settings() | self.SETTINGS}

    @contextlib.contextmanager
    def run(self, shape):
        with tempfile.TemporaryDirectory(prefix=f"{self.NAME}-", dir=self.asked.folder) as folder, Processes(folder) as run:
            urls = self.shapes[shape](run)
            # A bridge connects, and a log elects its leader.
            time.sleep(2)
            yield run, urls

    def example(self, name, arguments, patience):
        """What an example prints."""
        command = [self.built / "examples" / name, *map(str, arguments)]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience).stdout
        except subprocess.CalledProcessError as failed:
            raise Failed(f"{name} {command[1:]}: {failed.stderr}") from failed
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{name} {command[1:]}: not done after {patience} s") from late

    def across(self, *arguments):
        return json.loads(self.example("across", arguments, 120))

    @classmethod
    def options(cls, about):
        parser = argparse.ArgumentParser(prog=cls.NAME, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=5, help="rounds, each with every shape once; else 5")
        parser.add_argument("--seconds", type=int, default=5, help="measured time of a run")
        parser.add_argument("--parts", type=lambda text: text.split(","), default=list(cls.PARTS), metavar="PART,..",
                            help=f"what is measured: {', '.join(cls.PARTS)}")
        parser.add_argument("--folder", type=pathlib.Path, default=tempfile.gettempdir(),
                            help="where the programs write; it says which disk")
        parser.add_argument("--built", type=pathlib.Path, help="programs that are built; else they are built here")
        parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                            help="every raw figure, after each round; a part replaces that of the file, and others stay in it")
        parser.add_argument("--only", type=lambda text: text.split(","), metavar="SHAPE,..", help="shapes by name")
        return parser

    @classmethod
    def main(cls, parser, shapes):
        asked = parser.parse_args()
        if unknown := set(asked.parts) - set(cls.PARTS):
            parser.error(f"`{unknown.pop()}` is none of {', '.join(cls.PARTS)}")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{cls.NAME}: ended"))
        for program in cls.NEEDS:
            if not shutil.which(program):
                sys.exit(f"{cls.NAME}: there is no {program} in PATH")
        found = cls.kept(asked.json)
        if asked.only and (both := set(found["parts"]) & set(asked.parts)):
            sys.exit(f"{cls.NAME}: {asked.json} has `{both.pop()}` already, and --only would leave out its other shapes")
        bench = cls(asked, shapes)
        if asked.only:
            if unknown := set(asked.only) - set(bench.shapes):
                sys.exit(f"{cls.NAME}: `{unknown.pop()}` is none of {', '.join(bench.shapes)}")
            bench.shapes = {name: bench.shapes[name] for name in asked.only}
        print(machine_line(machine()), flush=True)
        failed = 0
        for part in asked.parts:
            taken, runs = bench.taken(), []
            for runs in bench.rounds(part):
                found["parts"][part] = {**taken, "runs": runs}
                if asked.json:
                    written = asked.json.with_suffix(".part")
                    written.write_text(json.dumps(found, indent=1) + "\n")
                    written.replace(asked.json)
            if runs:
                print("\n".join(["", *cls.table(part, runs)]), flush=True)
            failed += sum("error" in run for run in runs)
        if failed:
            sys.exit(f"{cls.NAME}: {failed} runs failed")

    @classmethod
    def kept(cls, path):
        """What the file has from before."""
        if path is None or not path.exists():
            return {"schema": cls.SCHEMA, "parts": {}}
        found = json.loads(path.read_text())
        if found.get("schema") != cls.SCHEMA:
            sys.exit(f"{cls.NAME}: {path} has another form than {cls.SCHEMA}")
        return found

    @classmethod
    def table(cls, part, runs):
        """A part's medians and ranges over its rounds."""
        columns, rows = cls.SHOWN[part], {}
        for run in runs:
            if "error" not in run:
                place = [run["shape"], *([f"QoS {run['qos']}"] if "qos" in run else []), *([run["way"]] if "way" in run else [])]
                rows.setdefault(", ".join(place), []).append(run)
        yield f"| {part} | {' | '.join(columns)} |"
        yield "|---" * (1 + len(columns)) + "|"
        for place, found in rows.items():
            values = ([value * scale for value in (at(run, path) for run in found) if value is not None]
                      for path, scale in columns.values())
            yield f"| {place} | {' | '.join(map(spread, values))} |"


def file_system(folder):
    """The kind of the file system that a folder is on, such as `ext4`."""
    folder = pathlib.Path(folder).resolve()
    mounts = [line.split()[1:3] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    holding = [(len(place), kind) for place, kind in mounts if folder.is_relative_to(place)]
    # Of two mounts at one place the last one is seen.
    return max(reversed(holding), key=lambda mount: mount[0])[1]


def spread(values):
    """The median, and from the lowest to the highest value in brackets if there are several."""
    digits = 0 if values and min(values) >= 100 else 2
    if not values:
        return ""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) < 2 else f"{middle} [{min(values):,.{digits}f}, {max(values):,.{digits}f}]"
