"""Raw runs to rows, tables and goals."""

import statistics

from brokers.measure import BUSY, BYSTANDER_MS, KEEP_ALIVE, LATE, LOADS, LOST

OURS = "mq"
GENERATOR = "saturated by "  # a shape whose generator is another project's
ALONE = "alone"  # the metric of a handshake without a broker

# metric: (title, field of a run, divisor, digits, shapes)
MESSAGES = ("one-to-one", "pairs", "fan-out", "fan-in", "saturated", "saturated-qos1")
METRICS = {
    "cpu": ("Broker CPU a message delivered, µs", "cpu_ns", 1e3, 2, MESSAGES),
    "rate": ("Messages delivered a second, thousands", "a_second", 1e3, 1, ("saturated", "saturated-qos1")),
    "missing": ("Messages sent and not delivered in the measured time, %", "missing", 1e-2, 1,
                ("saturated", "saturated-qos1")),
    "memory": ("Memory a connected idle client, KB", "bytes_a_client", 1e3, 2, ("idle",)),
    "handshake": ("Broker CPU a connection, µs", "cpu_ns", 1e3, 0, ("connections",)),
    ALONE: ("CPU of a handshake's server in memory, without a broker, µs", "handshake_ns", 1e3, 0, ("connections",)),
    "connections": ("Connections a second", "a_second", 1, 0, ("connections",)),
    "p99": ("p99 of a bystander's delay at half of that broker's saturated rate, ms", "p99_ns", 1e6, 2, ("bystander",)),
}
WORDS = {
    **{shape: plan[-1] for shape, plan in LOADS.items()},
    "idle": f"idle, keep-alive {KEEP_ALIVE} s",
    "connections": "full handshakes",
    "bystander": f"a message every {BYSTANDER_MS} ms",
}
MARKS = {
    "*": f"in some round the generator fell behind the offered rate by more than {LATE:.0%}",
    "!": f"in some round more than {LOST:.1%} of the messages were not delivered in the measured time (lost, or queued), "
         "or a connection or a bystander's message failed",
    "~": f"in some round other programs took more than {BUSY} processors",
}
# What one thin device may cost: words, metric, shape, transport, limit, and whether it is a factor of another figure:
# of another broker's, of our own on another transport, or of another metric of the same run.
GOALS = [
    *(("cpu", shape, transport, 0.8, ("mosquitto", transport))
      for shape in ("one-to-one", "pairs", "fan-in") for transport in ("tcp", "tls")),
    *(("cpu", shape, "quic", 2.0, (None, "tls")) for shape in ("one-to-one", "pairs", "fan-in")),
    ("cpu", "fan-out", "tcp", 0.9, ("mosquitto", "tcp")),
    ("cpu", "fan-out", "quic", 0.6, ("rmqttd", "quic")),
    ("memory", "idle", "tcp", 4.0, None),
    ("memory", "idle", "tls", 10.0, None),
    ("memory", "idle", "quic", 20.0, None),
    ("handshake", "connections", "quic", 1.0, (None, "tls")),
    ("handshake", "connections", "tls", 1.3, ALONE),
]


def marks(runs):
    found = {
        "*": any(run["late"] for run in runs),
        "!": any(run["lost"] for run in runs),
        "~": any(run["others_cores"] > BUSY for run in runs),
    }
    return "".join(mark for mark, is_there in found.items() if is_there)


class Figures:
    """Medians and ranges over the rounds, by (metric, shape, transport, broker)."""

    def __init__(self, runs):
        cells = {}
        for run in runs:
            for metric, (_, field, divisor, _, shapes) in METRICS.items():
                if field in run and (run["shape"] in shapes or
                                     (metric == "rate" and run["shape"].startswith(GENERATOR))):
                    key = (metric, run["shape"], run["transport"], run["broker"])
                    cells.setdefault(key, []).append((run[field] / divisor, run))
        self.cells = {key: self.cell(found) for key, found in cells.items()}
        self.brokers = list(dict.fromkeys(run["broker"] for run in runs))

    @staticmethod
    def cell(found):
        values = [value for value, _ in found]
        return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values),
                "marks": marks([run for _, run in found])}

    def median(self, *key):
        cell = self.cells.get(key)
        return cell and cell["median"]

    def reference(self, metric, shape, transport):
        """The figure that others are a factor of, and its name: mosquitto's, of QUIC rmqttd's or our TLS's."""
        if metric in ("missing", ALONE):
            return None, None
        places = [("rmqttd", "quic"), (OURS, "tls")] if transport == "quic" else [("mosquitto", transport)]
        for broker, of in places:
            if found := self.median(metric, shape, of, broker):
                return found, f"{broker} {of}"
        return None, None

    def ratio(self, metric, shape, transport, broker):
        found, (reference, _) = self.median(metric, shape, transport, broker), self.reference(metric, shape, transport)
        return found / reference if found is not None and reference else None

    def rows(self):
        """All cells, for JSON."""
        return [{"metric": metric, "shape": shape, "transport": transport, "broker": broker, **cell,
                 "ratio": self.ratio(metric, shape, transport, broker)}
                for (metric, shape, transport, broker), cell in self.cells.items()]

    def text(self, metric, shape, transport, broker):
        cell = self.cells.get((metric, shape, transport, broker))
        if cell is None:
            return "-"
        digits = METRICS[metric][3]
        text = f"{cell['median']:,.{digits}f}"
        if cell["rounds"] > 1:
            text += f" ({cell['min']:,.{digits}f}-{cell['max']:,.{digits}f})"
        ratio = self.ratio(metric, shape, transport, broker)
        return text + (f" x{ratio:.2f}" if ratio is not None else "") + cell["marks"]

    def tables(self):
        """Each metric as a table: a row for each shape and transport, a column for each broker."""
        for metric, (title, *_) in METRICS.items():
            places = list(dict.fromkeys(key[1:3] for key in self.cells if key[0] == metric))
            if not places:
                continue
            rows = [["", "", *self.brokers, "x1 is"]]
            for shape, transport in places:
                texts = [self.text(metric, shape, transport, broker) for broker in self.brokers]
                of = self.reference(metric, shape, transport)[1] or "-"
                rows.append([WORDS.get(shape, shape), transport, *texts, of])
            yield f"{title}\n{aligned(rows)}"
        used = {mark for cell in self.cells.values() for mark in cell["marks"]}
        yield "\n".join(f"{mark}  {words}" for mark, words in MARKS.items() if mark in used)

    def goals(self):
        """Each goal with the figure of our broker in each of its columns."""
        ours = [broker for broker in self.brokers if broker == OURS or broker.startswith(OURS + "-")]
        for metric, shape, transport, limit, of in GOALS:
            if of == ALONE:
                place = " of its handshake in memory"
            else:
                place = f" of {of[0] or 'our'} {of[1]}" if of else METRICS[metric][0].rsplit(",", 1)[1]
            goal = {"metric": metric, "shape": shape, "transport": transport, "limit": limit,
                    "words": f"at most {limit:g}{place}", "figures": {}}
            for broker in ours:
                found = self.median(metric, shape, transport, broker)
                if of == ALONE:
                    reference = self.median(ALONE, shape, transport, broker)
                else:
                    reference = self.median(metric, shape, of[1], of[0] or broker) if of else 1
                is_known = found is not None and reference
                goal["figures"][broker] = found / reference if is_known else None
            yield goal

    def goals_table(self):
        goals = list(self.goals())
        if not goals or not goals[0]["figures"]:
            return "Goals: this broker did not run"
        rows = [["goal", "", "", "", *goals[0]["figures"]]]
        for goal in goals:
            verdicts = [verdict(found, goal["limit"]) for found in goal["figures"].values()]
            title = {"cpu": "CPU", "memory": "memory", "handshake": "CPU"}[goal["metric"]]
            rows.append([WORDS[goal["shape"]], goal["transport"], title, goal["words"], *verdicts])
        return "Goals\n" + aligned(rows)


def verdict(found, limit):
    if found is None:
        return "no figure"
    return f"{found:.2f} {'met' if found <= limit else 'MISSED'}"


def aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join("  " + line.rstrip() for line in lines)
