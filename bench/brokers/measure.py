"""One run of a shape against a running broker: each function returns raw figures."""

import csv
import json
import os
import pathlib
import resource
import subprocess
import threading
import time

from brokers.suts import Unusable

SIZE = 100  # bytes of a payload
KEEP_ALIVE = 60  # seconds, of every client
LATE = 0.02  # share of the offered rate by which the generator may fall behind
LOST = 0.005  # share of the messages that may be missing: some are under way at either end of the measured time
UNDER_WAY_S = 0.02  # or so long a time's messages, in a short run
BUSY = 0.2  # processors that other programs may use during a run
BYSTANDER_MS = 50  # between the bystander's messages
AT_ONCE = 8  # handshakes under way
HANDSHAKES_S = 1  # seconds of handshakes in memory, of each kind in turns
# For a shape of many publishers: the golden ratio of their interval, so that they do not send at the same moments.
APART_S = 0.01236

# name: publishers, subscribers, topics, messages a second (None: as many as go through), QoS, and the words of a row.
LOADS = {
    "one-to-one": (1, 1, 1, 1000, 0, "1 -> 1, 1,000/s"),
    "pairs": (100, 100, 100, 5000, 0, "100 pairs, 50/s each"),
    "fan-out": (1, 200, 1, 200, 0, "1 -> 200, 200/s"),
    "fan-in": (100, 1, 1, 5000, 0, "100 -> 1, 5,000/s in all"),
    "saturated": (1, 1, 1, None, 0, "1 -> 1, saturated, QoS 0"),
    "saturated-qos1": (1, 1, 1, None, 1, "1 -> 1, saturated, QoS 1"),
}


class Others:
    """What the machine does beside the broker and the programs that this one starts, in processors."""

    def __init__(self, broker):
        self.broker = broker

    @staticmethod
    def machine_s():
        user, nice, system = pathlib.Path("/proc/stat").read_text().split()[1:4]
        return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own_s():
        both = (resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    def now(self):
        return self.machine_s(), self.own_s(), self.broker.cpu_ns() / 1e9, time.monotonic()

    def __enter__(self):
        self.began = self.now()
        return self

    def __exit__(self, *_):
        machine, own, broker, seconds = (end - begin for end, begin in zip(self.now(), self.began, strict=True))
        self.figures = {
            "generator_cores": own / seconds,
            "others_cores": max(0.0, (machine - own - broker) / seconds),
        }


class Bench:
    """The programs that make the load, and how long each run takes."""

    def __init__(self, built, seconds, ramp_s, clients, settle_s, identity):
        self.built, self.seconds, self.ramp_s, self.clients, self.settle_s = built, seconds, ramp_s, clients, settle_s
        self.ca, self.key = str(identity["certificate"]), str(identity["key"])
        # The same TLS of every broker: version 1.3, one cipher suite, one group.
        self.client = ["--mqtt", "3.1.1", "--keep-alive", str(KEEP_ALIVE), "--ca", self.ca, "--tls-version", "1.3",
                       "--ciphers", "aes128-gcm", "--groups", "x25519"]

    def mqbench(self, *arguments):
        return [self.built / "mqbench", *map(str, arguments)]

    def said(self, command, patience):
        """The standard output of a program of ours."""
        try:
            done = subprocess.run(command, text=True, check=True, timeout=patience, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.CalledProcessError as failed:
            raise Unusable((failed.stderr.strip().splitlines() or ["it ended without a word"])[-1]) from None
        except subprocess.TimeoutExpired:
            raise Unusable(f"no end within {patience:.0f} s") from None
        return done.stdout

    def load_command(self, broker, transport, shape, seconds, rate=None):
        publishers, subscribers, topics, own_rate, qos, _ = LOADS[shape]
        command = self.mqbench("load", broker.url(transport), *self.client, "--publishers", publishers,
                               "--subscribers", subscribers, "--topics", topics, "--size", SIZE, "--qos", qos,
                               "--duration", f"{seconds}s", "--broker-pid", broker.pid, "--json")
        if offered := rate or own_rate:
            command += ["--rate", str(offered), "--ramp-up", f"{max(self.ramp_s, publishers * APART_S):.3f}s"]
        return command, offered

    def load(self, broker, transport, shape, seconds=None):
        seconds = seconds or self.seconds
        command, offered = self.load_command(broker, transport, shape, seconds)
        with Others(broker) as others:
            raw = json.loads(self.said(command, seconds + 60))
        return {**of_load(raw, offered, LOADS[shape], seconds), **others.figures}

    def bystander(self, broker, transport, saturated):
        """The latency of a pair with a few messages a second, beside half of what the broker can do."""
        command, offered = self.load_command(broker, transport, "saturated", self.seconds + 2, rate=saturated / 2)
        samples = broker.folder / "bystander.csv"
        count = int(self.seconds * 1000 / BYSTANDER_MS)
        pair = self.mqbench("e2e", broker.url(transport), *self.client, "--count", count, "--size", SIZE,
                            "--interval", f"{BYSTANDER_MS}ms", "--out", samples)
        with Others(broker) as others:
            with subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL) as load:
                try:
                    time.sleep(self.ramp_s + 1.5)
                    self.said(pair, self.seconds + 60)
                    text, _ = load.communicate(timeout=60)
                finally:
                    load.kill()
        if load.returncode != 0:
            raise Unusable("the load beside the bystander failed")
        beside = of_load(json.loads(text), offered, LOADS["saturated"], self.seconds)
        with samples.open() as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        latencies = [int(row["received_ns"]) - int(row["intended_ns"]) for row in rows if row["received_ns"]]
        if not latencies:
            raise Unusable("none of the bystander's messages arrived")
        return {
            "beside": beside, "sent": len(rows), "latencies_ns": latencies,
            "p50_ns": percentile(latencies, 0.50), "p99_ns": percentile(latencies, 0.99),
            "late": beside["late"], "lost": len(latencies) < len(rows), **others.figures,
        }

    def crowd(self, what, broker, transport, first, second):
        return Crowd([self.built / "examples/crowd", what, broker.url(transport), str(first), str(second), self.ca])

    def idle(self, broker, transport):
        """The memory of clients that are connected and send nothing."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors < 2 * self.clients:
            raise Unusable(f"{self.clients} clients need {2 * self.clients} descriptors, ulimit -n has {descriptors}")
        with Others(broker) as others, self.crowd("idle", broker, transport, self.clients, KEEP_ALIVE) as crowd:
            crowd.hear("warm")
            time.sleep(1)
            before = broker.memory()
            crowd.say()
            crowd.hear("connected", self.clients / 20 + 30)
            time.sleep(self.settle_s)
            after = broker.memory()
        rss, anonymous = (end - begin for end, begin in zip(after, before, strict=True))
        return {"clients": self.clients, "rss_before": before[0], "rss_after": after[0],
                "bytes_a_client": rss / self.clients, "anonymous_bytes_a_client": anonymous / self.clients,
                "late": False, "lost": False, **others.figures}

    def connections(self, broker, transport):
        """Full handshakes with CONNECT, CONNACK and DISCONNECT: the broker's CPU for each, and how many a second."""
        with Others(broker) as others, self.crowd("dial", broker, transport, self.seconds, AT_ONCE) as crowd:
            crowd.hear("warm")
            time.sleep(0.2)
            before = broker.cpu_ns()
            crowd.say()
            raw = json.loads(crowd.hear(None, self.seconds + 30))
            # The last clients have just left, and the broker notices.
            time.sleep(0.2)
            used = broker.cpu_ns() - before
        if not raw["connections"]:
            raise Unusable("no connection was made")
        return {**raw, "cpu_ns": used / raw["connections"], "a_second": raw["connections"] / raw["seconds"],
                "late": False, "lost": raw["failed"] > 0, **others.figures, **self.handshake(transport)}

    def handshake(self, transport):
        """What the server's side of such a handshake costs in memory alone; nothing over TCP."""
        if transport == "tcp":
            return {}
        command = [self.built / "examples/handshake", str(HANDSHAKES_S), self.ca, self.key]
        raw = json.loads(self.said(command, HANDSHAKES_S + 30))
        return {"handshake_ns": raw[f"{transport}_ns"]}


def of_load(raw, offered, plan, seconds):
    """What one `mqbench load` says, as figures of a row."""
    _, subscribers, topics, _, _, _ = plan
    expected = raw["sent_per_second"] * subscribers / topics
    if not raw["received_per_second"]:
        raise Unusable("no message was delivered")
    missing = 1 - raw["received_per_second"] / expected
    return {
        "offered_a_second": offered, "sent_a_second": raw["sent_per_second"],
        "a_second": raw["received_per_second"], "cpu_ns": raw["broker_cpu_ns_per_message"],
        "broker_cores": raw["broker_cores"], "peak_rss": raw["broker_peak_rss_bytes"], "missing": missing,
        "late": bool(offered) and raw["sent_per_second"] < offered * (1 - LATE), "lost": missing > max(LOST, UNDER_WAY_S / seconds),
    }


def percentile(values, share):
    """By the nearest rank: the smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


class Crowd:
    """An example such as `crowd` on its way. It says a line when it is ready, and goes on at a line."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def hear(self, word, patience=60):
        watch = threading.Timer(patience, self.process.kill)
        watch.start()
        line = self.process.stdout.readline().strip()
        watch.cancel()
        if not line or (word and line != word):
            self.process.kill()
            said = self.process.stderr.read().strip().splitlines()
            raise Unusable(said[-1] if said else f"its clients were not done within {patience:.0f} s")
        return line

    def say(self, words=""):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def __exit__(self, *_):
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        self.process.wait()


def mqttv5(program, bench, broker, transport):
    """The saturated row by another project's generator, with MQTT 5 and its own ideas of a client."""
    scheme, rest = broker.url(transport).split("://")
    url = {"tcp": "mqtt", "tls": "mqtts", "quic": "quics"}[scheme] + "://" + rest
    command = [program, "bench", "--url", url, "--duration", str(bench.seconds), "--warmup", "1", "--payload-size",
               str(SIZE), "--topic", "compare", "--ca-cert", bench.ca]
    with Others(broker) as others:
        before = broker.cpu_ns()
        text = bench.said(command, bench.seconds + 60)
        used = broker.cpu_ns() - before
    try:
        raw = json.loads(text[text.index("\n{") if not text.startswith("{") else 0:])["results"]
    except ValueError:
        raise Unusable("mqttv5 bench printed no JSON") from None
    if not raw["received"]:
        raise Unusable("mqttv5 bench received nothing")
    return {"a_second": raw["received"] / raw["elapsed_secs"], "sent_a_second": raw["published"] / raw["elapsed_secs"],
            "broker_cpu_ns_with_warm_up": used, "late": False, "lost": False, **others.figures}
