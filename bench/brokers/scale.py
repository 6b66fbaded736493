"""One broker with many clients, subscriptions or retained messages, and a bystander beside them. docs/results/scale.md
says what the figures mean."""

import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import resource
import time

from brokers.machine import memory
from brokers.measure import SIZE, Crowd, Others, percentile
from brokers.suts import Running, Unusable, cpu_ns, resident

FULL = {"tcp": 19_000, "tls": 19_000, "quic": 100_000, "subscriptions": 1_000_000, "retained": 1_000_000}
WORDS = {"tcp": "TCP clients", "tls": "TLS clients", "quic": "QUIC clients", "subscriptions": "subscriptions",
         "retained": "retained messages"}
TRANSPORTS = ("tcp", "tls", "quic")
# Bytes that broker and crowd together may need for one, to tell beforehand that a machine is too small.
NEED = {"tcp": 40_000, "tls": 80_000, "quic": 150_000, "subscriptions": 4_000, "retained": 4_000}
SPARE = 300  # descriptors of a program besides its clients'
FILTERS = 1_000  # of each client of the row `subscriptions`
ON_ONE_SOCKET = 100  # QUIC clients, as in bench/examples/scale
INTERVAL_MS = 20  # between the bystander's messages
NICENESS = 10  # of the crowd: devices have processors of their own
SLOW = 200_000  # bytes that the slow reader takes a second
# What the broker's defaults would not let in.
LIMITS = {"max_connections": 200_000, "retained": 1_100_000, "memory": 16 << 30}


@dataclasses.dataclass
class Times:
    """Seconds of the phases whose length is not that of the work."""
    before: float = 10
    idle: float = 30
    # Longer than half of QUIC's idle timeout, after which both ends send a packet of QUIC.
    idle_quic: float = 165
    ping: float = 30
    leaving: float = 10
    after: float = 30


QUICK = Times(1, 1, 1, 1, 1, 1)


def with_limits(sut):
    """The same broker, with a configuration that lets so many in."""
    sut = copy.copy(sut)
    limits = "".join(f"{key} = {value}\n" for key, value in LIMITS.items())
    files = {name: f"{text}\n[limits]\n{limits}" for name, text in sut.form["files"].items()}
    sut.form = {**sut.form, "files": files}
    return sut


def udp(key):
    """A count of all UDP sockets of this network namespace, those of other programs among them."""
    lines = [line.split() for line in pathlib.Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Udp:")]
    return int(dict(zip(*lines, strict=True))[key])


def stolen_s():
    """Processor time that the host of a virtual machine kept to itself."""
    return int(pathlib.Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


class Bystander(Crowd):
    """A publisher and a subscriber with a message each INTERVAL_MS, by a schedule that waits for nothing."""

    def mark(self):
        self.say()
        self.hear(None)

    def end(self):
        """The delays, and between which marks each message was due."""
        self.process.stdin.close()
        return json.loads(self.hear(None))


class Watch:
    """What the broker, its clients, the bystander and the machine do in each phase of a row."""

    def __init__(self, broker, bystander, crowds):
        self.broker, self.bystander, self.crowds, self.phases = broker, bystander, crowds, []

    def now(self):
        broker = self.broker.cpu_ns() / 1e9
        crowd = sum(cpu_ns(crowd.process.pid) for crowd in self.crowds) / 1e9
        own = (cpu_ns(self.bystander.process.pid) + cpu_ns(os.getpid())) / 1e9
        return {"seconds": time.monotonic(), "broker_cpu_s": broker, "clients_cpu_s": crowd,
                "others_cpu_s": Others.machine_s() - broker - crowd - own, "stolen_cpu_s": stolen_s(),
                "udp_datagrams": udp("InDatagrams"), "udp_datagrams_without_room": udp("RcvbufErrors")}

    @contextlib.contextmanager
    def phase(self, name):
        self.bystander.mark()
        began = self.now()
        yield
        ended = self.now()
        self.bystander.mark()
        rss, anonymous = self.broker.memory()
        self.phases.append({
            "phase": name, **{key: ended[key] - began[key] for key in began},
            "broker_rss": rss, "broker_anonymous": anonymous,
            "clients_rss": sum(resident(crowd.process.pid, "VmRSS") for crowd in self.crowds),
            "kernel_slab": memory("Slab"), "available": memory("MemAvailable"),
        })

    def rest(self, name, seconds):
        with self.phase(name):
            time.sleep(seconds)

    def done(self):
        """The phases, each with the bystander's delays."""
        said = self.bystander.end()
        marks = said["marks_ns"]
        for number, phase in enumerate(self.phases):
            begin, end = (-(-mark // said["interval_ns"]) for mark in marks[2 * number:2 * number + 2])
            delays, late = said["delays_ns"][begin:end], said["late_ns"][begin:end]
            there = [delay for delay in delays if delay is not None]
            phase["bystander"] = {"sent": len(delays), "lost": len(delays) - len(there)}
            if there:
                phase["bystander"] |= {
                    "p50_ns": percentile(there, 0.5), "p99_ns": percentile(there, 0.99), "max_ns": max(there),
                    "sent_late_p99_ns": percentile(late, 0.99),
                }
        return self.phases


class Scale:
    """The rows, each with a fresh broker."""

    def __init__(self, sut, built, folder, identity, keep_alive, times):
        self.sut, self.built, self.folder, self.identity = with_limits(sut), built, folder, identity
        self.keep_alive, self.times = keep_alive, times

    def run(self, row, number):
        if row == "subscriptions":
            number -= number % min(FILTERS, number)
        self.check(row, number)
        transport = row if row in TRANSPORTS else "tcp"
        folder = self.folder / row
        folder.mkdir()
        with Running(self.sut, folder, self.identity) as broker:
            # Below one more level of a crowd's exact filters, and matched by no other.
            topic = "fleet/bystander/command"
            with self.part(Bystander, broker, transport, "bystander", topic, INTERVAL_MS) as bystander:
                bystander.hear("ready")
                figures = (self.retained if row == "retained" else self.crowd)(broker, bystander, row, transport, number)
            return {"row": row, "number": number, "broker_peak": resident(broker.pid, "VmHWM"), **figures}

    @staticmethod
    def check(row, number):
        """Fails with one line where this machine is too small."""
        if row in ("tcp", "tls"):
            needed = number + SPARE
        else:
            needed = SPARE + (number // ON_ONE_SOCKET if row == "quic" else number // FILTERS)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if needed > most:
            raise Unusable(f"{number:,} {WORDS[row]} need {needed:,} descriptors a process, and `ulimit -Hn` is {most:,}")
        needed, there = number * NEED[row], memory("MemAvailable")
        if needed > there:
            raise Unusable(f"{number:,} {WORDS[row]} need some {needed / 1e9:.1f} GB, and {there / 1e9:.1f} GB are available")

    def part(self, kind, broker, transport, what, *arguments):
        command = [self.built / "examples/scale", what, broker.url(transport), *arguments, self.identity["certificate"]]
        nice = [] if kind is Bystander else ["nice", "-n", str(NICENESS)]
        return kind([*nice, *map(str, command)])

    def crowd(self, broker, bystander, row, transport, number):
        """Clients that come, stay, ping and leave; those of the row `subscriptions` subscribe first."""
        times = self.times
        filters = min(FILTERS, number) if row == "subscriptions" else 0
        clients = number // filters if filters else number
        with self.part(Crowd, broker, transport, "crowd", clients, self.keep_alive, filters) as crowd:
            crowd.hear("ready")
            watch = Watch(broker, bystander, [crowd])
            found = {}

            def order(name, words, patience=120):
                crowd.say(words)
                found[name] = json.loads(crowd.hear(None, patience))
            watch.rest("before", times.before)
            with watch.phase("coming"):
                order("coming", "come", 120 + number / 50)
            watch.rest("idle", times.idle_quic if row == "quic" else times.idle)
            if filters:
                with watch.phase("matching"):
                    order("matching", "match")
            else:
                with watch.phase("pinging"):
                    order("pinging", f"ping {times.ping}")
            with watch.phase("leaving"):
                began = time.monotonic()
                order("leaving", "leave", 300)
                time.sleep(max(0, times.leaving - (time.monotonic() - began)))
            watch.rest("after", times.after)
            if lost := found["leaving"]["lost"]:
                raise Unusable(f"{lost:,} of {clients:,} clients lost their connection")
            return {"clients": clients, **found, "phases": watch.done()}

    def retained(self, broker, bystander, row, transport, number):
        """Messages that are retained, read by a subscriber of a few and by two of all, and taken back."""
        times = self.times
        few = len(range(73, number, 10_000))  # Reading 3 of device 7 of each site.
        readers = {"narrow": ("site/+/device/7/reading-3", few, 0), "slow": ("#", number, SLOW), "all": ("#", number, 0)}
        with contextlib.ExitStack() as parts:
            keeper = parts.enter_context(self.part(Crowd, broker, transport, "retain", number))
            crowds = {name: parts.enter_context(self.part(Crowd, broker, transport, "read", *wanted))
                      for name, wanted in readers.items()}
            for crowd in (keeper, *crowds.values()):
                crowd.hear("ready")
            watch = Watch(broker, bystander, [keeper, *crowds.values()])
            found = {}

            def order(name, crowd, words, patience=120 + number / 2_000):
                crowd.say(words)
                found[name] = json.loads(crowd.hear(None, patience))
                if refused := found[name].get("refused"):
                    raise Unusable(f"the broker refused {refused:,} of {number:,} messages")
            watch.rest("before", times.before)
            with watch.phase("coming"):
                order("coming", keeper, "keep")
            watch.rest("idle", times.idle)
            with watch.phase("reading few"):
                order("narrow", crowds["narrow"], "go")
            crowds["slow"].say("go")
            watch.rest("a slow reader of all", times.ping / 3)
            with watch.phase("a fast reader beside it"):
                order("all", crowds["all"], "go")
            with watch.phase("the slow reader stops"):
                order("slow", crowds["slow"], "stop")
                time.sleep(1)
            with watch.phase("leaving"):
                order("leaving", keeper, "clear")
            watch.rest("after", times.after)
            return {**found, "phases": watch.done()}


def summary(row):
    """What one item of the row costs."""
    phases = {phase["phase"]: phase for phase in row["phases"]}
    before, coming, idle = phases["before"], phases["coming"], phases["idle"]

    def cpu_ns_each(phase, number):
        """Of the broker, without what it pays for the bystander."""
        own = before["broker_cpu_s"] / before["seconds"] * phase["seconds"]
        return (phase["broker_cpu_s"] - own) / number * 1e9
    found = {
        "seconds": row["coming"]["seconds"], "a_second": row["number"] / row["coming"]["seconds"],
        "cpu_ns_each": cpu_ns_each(coming, row["number"]),
        "bytes_each": (idle["broker_rss"] - before["broker_rss"]) / row["number"],
        "clients_bytes_each": (idle["clients_rss"] - before["clients_rss"]) / row["number"],
        # Of both ends, which are on this machine.
        "kernel_bytes_each": (idle["kernel_slab"] - before["kernel_slab"]) / row["number"],
        "rss_before": before["broker_rss"], "rss_with_all": idle["broker_rss"],
        "rss_left": phases["leaving"]["broker_rss"], "rss_after": phases["after"]["broker_rss"],
        "leaving_cpu_ns_each": cpu_ns_each(phases["leaving"], row["number"]),
        "leaving_seconds": row["leaving"]["seconds"],
        "idle_cores": idle["broker_cpu_s"] / idle["seconds"],
        "own_cores": before["broker_cpu_s"] / before["seconds"],
    }
    if "pinging" in phases:
        found["ping_cpu_ns"] = cpu_ns_each(phases["pinging"], row["pinging"]["pongs"] or 1)
    return found


def tables(rows):
    """Tables for people: the items, then the bystander in each phase."""
    items = [["", "number", "s", "a second", "CPU, µs", "bytes each", "MB before", "with all", "left", "after", "clients, MB"]]
    waits = [["", "phase", "s", "messages", "lost", "p50, ms", "p99, ms", "longest, ms", "sent late", "broker", "clients",
              "others", "stolen"]]
    for row in rows:
        found = row["summary"]
        items.append([WORDS[row["row"]], f"{row['number']:,}", f"{found['seconds']:.1f}", f"{found['a_second']:,.0f}",
                      f"{found['cpu_ns_each'] / 1e3:,.1f}", f"{found['bytes_each']:,.0f}",
                      *(f"{found[key] / 1e6:,.1f}" for key in ("rss_before", "rss_with_all", "rss_left", "rss_after")),
                      f"{max(phase['clients_rss'] for phase in row['phases']) / 1e6:,.1f}"])
        for phase in row["phases"]:
            bystander, seconds = phase["bystander"], phase["seconds"]
            times = [f"{bystander[key] / 1e6:,.2f}" if key in bystander else "-"
                     for key in ("p50_ns", "p99_ns", "max_ns", "sent_late_p99_ns")]
            cores = [f"{phase[key] / seconds:.2f}"
                     for key in ("broker_cpu_s", "clients_cpu_s", "others_cpu_s", "stolen_cpu_s")]
            waits.append([WORDS[row["row"]], phase["phase"], f"{seconds:.1f}", f"{bystander['sent']:,}",
                          f"{bystander['lost']:,}", *times, *cores])
    return items, waits


def settings(keep_alive, times):
    return {"keep_alive_s": keep_alive, "limits": LIMITS, "bystander_interval_ms": INTERVAL_MS, "payload_bytes": SIZE,
            "clients_niceness": NICENESS, "clients_on_one_udp_socket": ON_ONE_SOCKET, "filters_of_a_client": FILTERS,
            "slow_reader_bytes_a_second": SLOW, "phases_s": dataclasses.asdict(times)}
