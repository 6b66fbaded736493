"""Other projects' clients through a pair of relays, with QUIC between them, to other projects' brokers and mqbroker.

Arguments: the folder of compiled programs, the folder with what `tests/suites/run` has built, a chain of certificates
and its key. Environment: STRANGERS_ROUNDS (default: 1), STRANGERS_SEED, MQ_NIGHTLY, CI.

A client whose checks fail through the relays runs them at the broker itself as well, and with MQ_NIGHTLY each client
does, so that a failure says whether the relays are the cause. Recorders before the first relay and behind the second
compare the bytes of each connection. Prints one line a check and a table; exit status 1 if any check fails.

At mosquitto and mqbroker all clients share the broker and the relays. At rumqttd each has its own: rumqttd 0.20 gives
a new connection the number of one that has just ended, and the late end of that one then closes the new one, or leaves
a poisoned lock that refuses every client, without relays as well. A client fails there if it does so `TRIES` times.

A client is a program `HOST PORT VERSION ID CLEAN [WILL]` that reads lines and answers with lines:

    (connected)                                connected SESSION_PRESENT, or `-` where the client does not say it
    sub TOPIC QOS                              subscribed QOS
    pub TOPIC QOS RETAIN HEX PROPERTIES        published
    (a message)                                message QOS RETAIN HEX PROPERTIES
    leave                                      (DISCONNECT, and the end of the program)

With PROPERTIES 1 a client publishes those of `PROPERTIES` below.
"""

import asyncio
import os
import queue
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 10
TRIES = 3
PROPERTIES = "format=1,expiry=3600,type=text/plain,response=answer,correlation=00ff,user=a:1,user=a:2"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
VERSIONS = ("3.1.1", "5.0")
CHECKS = ["connect", "qos-0", "qos-1", "qos-2", "properties", "megabyte", "retained", "will", "session"]


class Failed(Exception):
    """A check that did not hold."""


class Lines:
    """A program whose lines wait in a queue for each kind: the first word of the line."""

    def __init__(self, command):
        self.errors = tempfile.TemporaryFile()
        self.program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, cwd=HERE
        )
        self.queues = defaultdict(queue.Queue)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.program.stdout:
            kind, *words = self.parse(line.rstrip(b"\n"))
            self.queues[kind].put(words)
        for kind in ("connected", "subscribed", "published", "message"):
            self.queues[kind].put(None)

    def parse(self, line):
        return line.decode().split(" ")

    def write(self, *words):
        try:
            self.program.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.program.stdin.flush()
        except BrokenPipeError:
            pass

    def next(self, kind):
        try:
            words = self.queues[kind].get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"no {kind} in {PATIENCE} s") from None
        if words is None:
            self.program.wait(timeout=PATIENCE)
            self.errors.seek(0)
            said = " ".join(self.errors.read().decode(errors="replace").split())[:300]
            raise Failed(f"the client ended before {kind}: {said or self.program.returncode}")
        return words

    def cut(self):
        """Ends the program, and so its connection, without DISCONNECT."""
        self.program.kill()
        self.program.wait()


class Client(Lines):
    """A client that follows lines."""

    command = ()
    properties = PROPERTIES

    def __init__(self, at, version, name, clean=True, will=None, sub=None):
        self.sub = sub
        host, port = at
        command = [*self.command, host, port, version, name, int(clean), *([will] if will else [])]
        super().__init__([str(word) for word in command])

    def connected(self):
        (present,) = self.next("connected")
        self.session_present = present != "0"
        if self.sub:
            self.subscribe(*self.sub)

    def subscribe(self, topic, qos):
        self.write("sub", topic, qos)
        granted = self.next("subscribed")
        if granted != [str(qos)]:
            raise Failed(f"QoS {qos} was asked for, and {granted} granted")

    def publish(self, topic, qos, payload, retain=False, properties=False):
        self.write("pub", topic, qos, int(retain), payload.hex(), int(properties))
        self.next("published")

    def message(self, qos, payload, retain=None):
        got_qos, got_retain, got, properties = self.next("message")
        if got != payload.hex():
            raise Failed(f"a payload of {len(got) // 2} bytes came for one of {len(payload)}: {got[:40]}")
        if int(got_qos) != qos:
            raise Failed(f"QoS {got_qos} came for {qos}")
        if retain is not None and bool(int(got_retain)) != retain:
            raise Failed(f"the retain flag was {got_retain}")
        return properties

    def leave(self):
        self.write("leave")
        try:
            self.program.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed("the client did not end after DISCONNECT") from None


class Mosquitto(Client):
    """mosquitto_sub, with a subscription from its start, and a mosquitto_pub for each message."""

    # The shell's arguments have no NUL.
    properties = PROPERTIES.replace("00ff", "c3bf")

    def __init__(self, at, version, name, clean=True, will=None, sub=None):
        self.version = {"3.1.1": "mqttv311", "5.0": "mqttv5"}[version]
        self.common = ["-h", at[0], "-p", str(at[1]), "-V", self.version]
        self.name = name
        self.clean = clean
        topic, self.qos = sub or (f"idle/{name}", 0)
        command = ["stdbuf", "-oL", "mosquitto_sub", "-d", *self.common, "-i", name, "-t", topic, "-q", str(self.qos)]
        command += ["-F", "message %q %r %x format=%F,expiry=%E,type=%C,response=%R,correlation=%D,users=%P"]
        if not clean:
            command += ["-c", *(["-x", "60"] if version == "5.0" else [])]
        if will:
            command += ["--will-topic", will, "--will-payload", "gone", "--will-qos", "1"]
        Lines.__init__(self, command)

    def connected(self):
        self.next("connected")
        # It does not say. A message that waited shows the session.
        self.session_present = not self.clean
        if self.next("subscribed") != [str(self.qos)]:
            raise Failed(f"QoS {self.qos} was not granted")

    def parse(self, line):
        if line.startswith(b"message "):
            kind, qos, retain, payload, fields = line.split(b" ", 4)
            fields, users = fields.split(b",users=")
            has = []
            for field in fields.split(b","):
                name, value = field.split(b"=", 1)
                value = value.hex() if name == b"correlation" else value.decode()
                if value:
                    has.append(f"{name.decode()}={value}")
            has += [f"user={user}" for user in users.decode().split()]
            return ["message", qos.decode(), retain.decode(), payload.decode(), ",".join(has)]
        line = line.decode()
        if re.search(r"received CONNACK \(0\)", line):
            return ["connected"]
        if found := re.search(r"^Subscribed \(mid: \d+\): (\d+)", line):
            return ["subscribed", found[1]]
        return ["other"]

    def publish(self, topic, qos, payload, retain=False, properties=False):
        command = ["mosquitto_pub", *self.common, "-i", f"{self.name}-pub", "-t", topic, "-q", str(qos), "-s"]
        if retain:
            command.append("-r")
        if properties:
            for words in (
                ["payload-format-indicator", "1"],
                ["message-expiry-interval", "3600"],
                ["content-type", "text/plain"],
                ["response-topic", "answer"],
                ["correlation-data", "\u00ff"],
                ["user-property", "a", "1"],
                ["user-property", "a", "2"],
            ):
                command += ["-D", "publish", *words]
        try:
            done = subprocess.run(command, input=payload, capture_output=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"mosquitto_pub did not end in {PATIENCE} s") from None
        if done.returncode:
            raise Failed(f"mosquitto_pub: {done.stderr.decode().strip() or done.returncode}")

    def leave(self):
        self.program.terminate()
        self.program.wait(timeout=PATIENCE)


class Run:
    """One client, in one protocol version, at one address: the outcome of each check, None where it holds."""

    def __init__(self, kind, port, version, tag, seed):
        self.kind, self.at, self.version, self.tag = kind, ("127.0.0.1", port), version, tag
        self.random = random.Random(f"{seed} {tag}")
        self.clients = []
        self.outcomes = {}

    def client(self, role, **options):
        made = self.kind(self.at, self.version, f"st-{self.tag}-{role}", **options)
        self.clients.append(made)
        made.connected()
        return made

    def checks(self):
        for check in CHECKS:
            if check == "properties" and self.version != "5.0":
                continue
            name, *number = check.split("-")
            self.topic = f"{self.tag}/{check}"
            try:
                getattr(self, name)(*map(int, number))
                self.outcomes[check] = None
            except (Failed, subprocess.TimeoutExpired) as error:
                self.outcomes[check] = str(error)
            finally:
                for client in self.clients:
                    client.cut()
                self.clients.clear()
        return self.outcomes

    def there_and_back(self, qos, payload, properties=False):
        one = self.client("one", sub=(self.topic, qos))
        one.publish(self.topic, qos, payload, properties=properties)
        got = one.message(qos, payload)
        one.leave()
        return one, got

    def connect(self):
        self.client("one").leave()

    def qos(self, qos):
        self.there_and_back(qos, self.random.randbytes(20))

    def properties(self):
        one, got = self.there_and_back(1, b"text", properties=True)
        # The broker may count the time that the message was with it. The order counts among user properties alone.
        got = got.replace("expiry=3599", "expiry=3600")
        if in_order(got) != in_order(one.properties):
            raise Failed(f"other properties came: {got}")

    def megabyte(self):
        self.there_and_back(1, self.random.randbytes(1024 * 1024))

    def retained(self):
        writer = self.client("writer")
        writer.publish(self.topic, 1, b"kept", retain=True)
        reader = self.client("reader", sub=(self.topic, 1))
        reader.message(1, b"kept", retain=True)
        for each in (writer, reader):
            each.leave()

    def will(self):
        watcher = self.client("watcher", sub=(self.topic, 1))
        self.client("rude", will=self.topic).cut()
        watcher.message(1, b"gone")
        watcher.leave()

    def session(self):
        first = self.client("kept", clean=False, sub=(self.topic, 1))
        first.leave()
        writer = self.client("writer")
        writer.publish(self.topic, 1, b"waited")
        again = self.client("kept", clean=False)
        if not again.session_present:
            raise Failed("no session was present")
        again.message(1, b"waited")
        for each in (writer, again):
            each.leave()


def in_order(properties):
    return sorted(properties.split(","), key=lambda field: field.split("=")[0])


class Recorder:
    """Passes TCP connections on to a port, and keeps the bytes of both directions: `[from the client, from the broker]`."""

    loop = asyncio.new_event_loop()

    def __init__(self, to):
        self.to = to
        self.connections = []
        self.open = set()
        starting = asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.server = asyncio.run_coroutine_threadsafe(starting, self.loop).result(PATIENCE)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        # The loop itself has weak references to tasks alone.
        self.open.add(asyncio.current_task())
        kept = [bytearray(), bytearray()]
        self.connections.append(kept)
        writers = [writer]
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.to)
            writers.append(to_writer)
            directions = ((reader, to_writer, kept[0]), (to_reader, writer, kept[1]))
            await asyncio.gather(*(self.pass_on(*direction) for direction in directions))
        except OSError:
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self.open.discard(asyncio.current_task())

    async def pass_on(self, reader, writer, kept):
        while some := await reader.read(65536):
            kept += some
            writer.write(some)
            await writer.drain()
        writer.write_eof()

    def settled(self):
        end = time.monotonic() + PATIENCE
        while self.open and time.monotonic() < end:
            time.sleep(0.02)
        return not self.open

    def of(self, tag):
        wanted = f"st-{tag}-".encode()
        return [(bytes(up), bytes(down)) for up, down in self.connections if wanted in up[:200]]


class Relayed:
    """The port of a broker, and a pair of relays before it, between two recorders."""

    def __init__(self, port, start_relays):
        self.port = port
        self.behind = Recorder(port)
        self.before = Recorder(start_relays(self.behind.port))

    def same_bytes(self, tag):
        """Compares the connections of a client at both recorders, once all have ended; returns what differs."""
        if not (self.before.settled() and self.behind.settled()):
            return "a connection did not end"
        sent, received = self.before.of(tag), self.behind.of(tag)
        if len(sent) != len(received):
            return f"{len(sent)} connections to the relay, and {len(received)} to the broker"
        if not sent:
            return "no connection was recorded"
        for up, down in sent:
            # What the broker sends after a client was cut may not reach it.
            found = [pair for pair in received if pair[0] == up and pair[1].startswith(down)]
            if not found:
                return f"a connection of {len(up)} and {len(down)} bytes came otherwise: {up[:60]!r}"
            received.remove(found[0])
        return None


class Programs:
    """Programs that run until the end of the block."""

    def __init__(self):
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.running:
            program.kill()
            program.wait()

    def start(self, command, **options):
        program = subprocess.Popen([str(word) for word in command], **options)
        self.running.append(program)
        return program

    def line(self, command):
        """Starts a program and returns its first line."""
        program = self.start(command, stdout=subprocess.PIPE, text=True)
        got = queue.Queue()
        threading.Thread(target=lambda: got.put(program.stdout.readline()), daemon=True).start()
        return got.get(timeout=PATIENCE)


def free_ports(number):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def listens(port):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens at {port}")


def shared_brokers(programs, built, folder):
    """Starts the brokers that all clients share; returns the port of each."""
    for_mosquitto, for_mqbroker = free_ports(2)
    conf = folder / "mosquitto.conf"
    conf.write_text(f"listener {for_mosquitto} 127.0.0.1\nallow_anonymous true\n")
    programs.start(["mosquitto", "-c", conf], **QUIET)
    conf = folder / "mqbroker.toml"
    conf.write_text(f'listen = ["tcp://127.0.0.1:{for_mqbroker}"]\n[limits]\nmax_packet_size = 2097152\n')
    programs.start([built / "mqbroker", "--config", conf], env={**os.environ, "RUST_LOG": "warn"})
    for port in (for_mosquitto, for_mqbroker):
        listens(port)
    return {"mosquitto": for_mosquitto, "mqbroker": for_mqbroker}


def rumqttd(programs, built, version):
    """Starts a rumqttd; returns its port for a protocol version."""
    ports = dict(zip(VERSIONS, free_ports(2)))
    programs.start([built / "examples/strangers", "rumqttd", *ports.values()], **QUIET)
    listens(ports[version])
    return ports[version]


def relays(programs, built, chain, key, port):
    """Starts a relay before the broker at a port, and one beside the clients; returns the port of the second."""
    start = [built / "mq", "relay", "--connections", "1000", "--listen"]
    line = programs.line(
        [*start, "quic://127.0.0.1:0", "--cert", chain, "--key", key, "--to", f"mqtt://127.0.0.1:{port}"]
    )
    quic = line.split()[0]
    line = programs.line([*start, "mqtt://127.0.0.1:0", "--cafile", chain, "--to", quic])
    return int(line.split()[0].rsplit(":", 1)[1])


def clients(built, work):
    """Returns the clients whose programs are there."""
    node, script = shutil.which("node"), work / "mqttjs/strangers.mjs"
    commands = {
        "paho-c": [work / "paho-c"],
        "paho-python": [sys.executable, HERE / "paho_python.py"],
        "paho-go": [work / "gopaho"],
        "mqttjs": [node, script] if script.exists() else [None],
        "rumqttc": [built / "examples/strangers", "rumqttc"],
        "mosquitto": [shutil.which("mosquitto_sub")],
    }
    kinds = {}
    for name, command in commands.items():
        if command[0] is None or not Path(command[0]).exists():
            print(f"skipped strangers/*/{name}: its program is missing")
            if os.environ.get("CI") == "true":
                sys.exit(f"{name} is missing")
        elif name == "mosquitto":
            kinds[name] = Mosquitto
        else:
            kinds[name] = type(name, (Client,), {"command": command})
    return kinds


def outcome(check, relayed, direct):
    """Returns the problem of a check, None where it holds; `direct` has no outcomes if the client ran through relays
    alone."""
    alone = direct.get(check)
    if relayed[check] is None:
        return alone and f"at the broker itself alone: {alone}"
    return f"{'at the broker itself as well' if alone else 'through the relays alone'}: {relayed[check]}"


def main():
    built, work, chain, key = map(Path, sys.argv[1:])
    seed = int(os.environ.get("STRANGERS_SEED", random.randrange(2**32)))
    print(f"STRANGERS_SEED={seed}")
    rounds = int(os.environ.get("STRANGERS_ROUNDS", "1"))
    nightly = "MQ_NIGHTLY" in os.environ
    kinds = clients(built, work)
    threading.Thread(target=Recorder.loop.run_forever, daemon=True).start()
    rows = defaultdict(dict)

    def path_to(port, programs):
        return Relayed(port, lambda behind: relays(programs, built, chain, key, behind))

    def run(kind, version, tag, path):
        """Returns the problem of each check, None where it holds."""
        relayed = Run(kind, path.before.port, version, f"{tag}-relayed", seed).checks()
        again = nightly or any(relayed.values())
        direct = Run(kind, path.port, version, f"{tag}-direct", seed).checks() if again else {}
        return {check: outcome(check, relayed, direct) for check in relayed}

    def run_alone(kind, version, tag):
        for number in range(1, TRIES + 1):
            with Programs() as programs:
                path = path_to(rumqttd(programs, built, version), programs)
                problems = run(kind, version, tag, path)
                problems["bytes"] = path.same_bytes(f"{tag}-relayed")
            failed = [check for check, problem in problems.items() if problem]
            if not failed:
                break
            print(f"rumqttd, {tag}, try {number} of {TRIES}: {failed[0]}: {problems[failed[0]]}")
        return problems

    def report(of, check, problem):
        name = "/".join(("strangers", *of, check))
        print(f"FAILED {name}: {problem}" if problem else f"ok {name}")
        if problem or check not in rows[of]:
            rows[of][check] = "FAILED" if problem else "ok"

    with tempfile.TemporaryDirectory() as folder, Programs() as programs, ThreadPoolExecutor(8) as pool:
        paths = {
            broker: path_to(port, programs) for broker, port in shared_brokers(programs, built, Path(folder)).items()
        }
        for number in range(rounds):
            for broker in ("mosquitto", "rumqttd", "mqbroker"):
                path = paths.get(broker)
                running = {}
                for version in VERSIONS:
                    for client, kind in kinds.items():
                        what = kind, version, f"{client}-{version}-{number}"
                        running[broker, client, version] = (
                            what[2],
                            pool.submit(run, *what, path) if path else pool.submit(run_alone, *what),
                        )
                for of, (_, problems) in running.items():
                    for check, problem in problems.result().items():
                        report(of, check, problem)
                if path:
                    for of, (tag, _) in running.items():
                        report(of, "bytes", path.same_bytes(f"{tag}-relayed"))
                    path.before.connections.clear()
                    path.behind.connections.clear()
    columns = [*CHECKS, "bytes"]
    print("\n| broker | client | MQTT | " + " | ".join(columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    for of, row in rows.items():
        print(f"| {' | '.join(of)} | {' | '.join(row.get(column, '-') for column in columns)} |")
    failed = sum("FAILED" in row.values() for row in rows.values())
    print(f"strangers: {len(rows)} clients at brokers through relays, {rounds} times each; {failed} failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
