"""The brokers under test: what bench/suts declares, and one that runs."""

import contextlib
import getpass
import itertools
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = pathlib.Path(sys.argv[0]).name
SOON = 10  # seconds that a broker may take to listen, and to end
KEYS = {"name", "program", "arguments", "version", "locked", "also", "urls", "files"}


class Unusable(Exception):
    """A broker or a row that is left out, with the reason for people."""


def fill(text, values):
    """Replaces `{word}` alone, so that files may have other braces."""
    return re.sub(r"\{([a-z_]+)\}", lambda found: str(values[found[1]]), text)


def installed(program):
    """The path of a program; `None` if it is not installed. An ordinary user has no /usr/sbin in PATH."""
    return shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")


class Sut:
    """A broker as a file of bench/suts declares it, or the same with more arguments."""

    def __init__(self, file, form, built, path=None):
        if unknown := set(form) - KEYS:
            raise SystemExit(f"{PROGRAM}: {file}: `{unknown.pop()}` is none of {', '.join(sorted(KEYS))}")
        self.file, self.form, self.built = file, form, built
        self.name, self.more = form["name"], []
        program = str(path or fill(form["program"], {"built": built}))
        self.program = program if "/" in program else installed(program)
        if self.program is None or not os.access(self.program, os.X_OK):
            raise Unusable(f"{form['name']}: {program} is not installed; --with {form['name']}=PATH names it")

    def others(self):
        """The same program with more arguments, each a column of its own."""
        for name, more in self.form.get("also", {}).items():
            other = Sut(self.file, self.form, self.built, self.program)
            other.name, other.more = name, more
            yield other

    def transports(self):
        return set(self.form["urls"])

    def version(self):
        if package := self.form.get("locked"):
            locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
            return next(f"{package} {found['version']}" for found in locked if found["name"] == package)
        said = subprocess.run([self.program, *self.form["version"]], text=True, check=False, timeout=SOON,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return (said.stdout.strip().splitlines() or ["unknown"])[0]


PORTS = itertools.count(random.randrange(22_000))


def free_port(kind=socket.SOCK_STREAM):
    """A port that nobody has, below those that the system gives to connections and to port 0: no other socket has it by
    the time at which a broker binds it."""
    while True:
        port = 10_000 + next(PORTS) % 22_000
        with socket.socket(socket.AF_INET, kind) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def cpu_ns(pid):
    """User and system time of a process with all of its threads, ended ones too: what /proc/PID/stat has in ticks of
    10 ms, here from the process's CPU-time clock (clock_getcpuclockid(3)) in nanoseconds."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def resident(pid, key):
    """A line of /proc/PID/status in bytes: VmRSS is what is resident now, VmHWM the most that was."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB$", text, re.M)[1]) * 1024


class Running:
    """A fresh process of a broker, with ports of its own. It ends with the `with` block."""

    def __init__(self, sut, folder, identity):
        self.sut, self.folder = sut, folder
        self.values = {
            "folder": folder, "built": sut.built, "user": getpass.getuser(), **identity,
            "tcp": free_port(socket.SOCK_STREAM), "tls": free_port(socket.SOCK_STREAM),
            "rpc": free_port(socket.SOCK_STREAM), "quic": free_port(socket.SOCK_DGRAM),
        }

    def __enter__(self):
        form = self.sut.form
        for name, text in form.get("files", {}).items():
            (self.folder / name).write_text(fill(text, self.values))
        arguments = [fill(argument, self.values) for argument in form["arguments"]] + self.sut.more
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([self.sut.program, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env={**os.environ, "RUST_LOG": "warn"})
        try:
            # QUIC's port answers nothing short of a handshake; it opens with the others.
            for transport in ("tcp", "tls"):
                if transport in form["urls"]:
                    self.wait_for(self.values[transport])
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_for(self, port):
        end = time.monotonic() + SOON
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.02)
        raise Unusable(f"{self.sut.name} does not listen: {self.why()}")

    def why(self):
        """Its last line, or what a panic says, behind which a trace may follow."""
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
        panics = [number + 1 for number, line in enumerate(lines[:-1]) if " panicked at " in line]
        return lines[panics[-1] if panics else -1]

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SOON)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    def url(self, transport):
        return fill(self.sut.form["urls"][transport], self.values)

    def cpu_ns(self):
        """As `cpu_ns` of the process, if it runs."""
        if self.process.poll() is not None:
            raise Unusable(f"{self.sut.name} ended: {self.why()}")
        return cpu_ns(self.pid)

    def memory(self):
        """Bytes that are resident: all of them, and those that no file backs."""
        self.cpu_ns()  # Fails where the process has ended.
        return [resident(self.pid, key) for key in ("VmRSS", "RssAnon")]


def declared(built, paths):
    """All brokers that bench/suts declares and this machine has, and why the others are left out."""
    suts, skipped = [], []
    files = sorted((ROOT / "bench/suts").glob("*.toml"))
    forms = [(file, tomllib.loads(file.read_text())) for file in files]
    names = [form["name"] for _, form in forms]
    if unknown := set(paths) - set(names):
        raise SystemExit(f"{PROGRAM}: --with {unknown.pop()}: bench/suts has {', '.join(names)}")
    for file, form in forms:
        try:
            sut = Sut(file, form, built, paths.get(form["name"]))
            suts += [sut, *sut.others()]
        except Unusable as why:
            skipped.append(str(why))
    return suts, skipped


def identity(folder, names="IP:127.0.0.1, DNS:localhost"):
    """A certificate of P-256 for some names and its key, such as every broker gets."""
    config = folder / "openssl.cnf"
    config.write_text("[req]\ndistinguished_name = name\nx509_extensions = with\nprompt = no\n[name]\nCN = localhost\n"
                      f"[with]\nsubjectAltName = {names}\nbasicConstraints = critical, CA:FALSE\n")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-config", config, "-keyout", key, "-out", certificate]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise SystemExit(f"{PROGRAM}: openssl is not installed, and the brokers need a certificate") from None
    return {"certificate": certificate, "key": key}
