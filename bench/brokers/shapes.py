"""Brokers, clusters and bridges that `bench/cluster` compares: what each starts, and where its clients go."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

from brokers.suts import cpu_ns, free_port, resident

NODES = (1, 2, 3, 5, 9)


class Failed(Exception):
    """A run without a value, with the reason for people."""


class Processes:
    """The programs of one run, which end with it."""

    def __init__(self, folder):
        self.folder, self.running, self.commands, self.metrics = pathlib.Path(folder), {}, {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.running.values()):
            process.kill()
            process.wait()

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("w") as log:
            env = {**os.environ, "RUST_LOG": "warn"}
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        self.running[name], self.commands[name] = process, command

    def again(self, name):
        """Starts a program that has ended, with the same command."""
        self.start(name, *self.commands[name])

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def listens(self, port, patience=60):
        until = time.monotonic() + patience
        while time.monotonic() < until:
            with contextlib.closing(socket.socket()) as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if any(process.poll() is not None for process in self.running.values()):
                break
            time.sleep(0.05)
        ends = [f"{path.name}: {path.read_text()[-500:]}" for path in self.folder.glob("*.log")]
        raise Failed("\n".join([f"nobody listens at {port}", *ends]))

    def says(self, name, line, patience):
        """Waits for a line of a program's output."""
        until, log = time.monotonic() + patience, self.folder / f"{name}.log"
        while time.monotonic() < until and self.running[name].poll() is None:
            if line in log.read_text().splitlines():
                return
            time.sleep(0.01)
        raise Failed(f"{name} does not say {line!r}: {log.read_text()[-500:]}")

    def disk(self):
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())

    def brokers(self):
        return [name for name in self.running if not name.startswith("nats-")]

    def servers(self):
        return [name for name in self.running if name.startswith("nats-")]

    def rss(self, names):
        """Bytes of memory that are resident, of all of these together."""
        return sum(resident(self.running[name].pid, "VmRSS") for name in names)

    def cpu_s(self, names):
        """Seconds of CPU time that these have taken, together."""
        return sum(cpu_ns(self.running[name].pid) for name in names) / 1e9


class Shapes:
    """Each starts its brokers, and returns where the publisher and where the reader goes."""

    def __init__(self, built):
        self.built = built

    def all(self):
        """The function of each shape by its name; those of mosquitto where it is installed."""
        found = {
            "one broker": self.one, "one broker with a store": self.one_store,
            **{f"cluster of {nodes}": lambda run, nodes=nodes: self.cluster(run, nodes) for nodes in NODES},
            "bridge with a store": self.bridge,
        }
        if shutil.which("mosquitto"):
            found |= {"mosquitto": self.mosquitto, "mosquitto's bridge": self.mosquitto_bridge}
        return found

    def programs(self):
        """The commands by which the programs say what they are."""
        return {"mqbroker": [self.built / "mqbroker", "--version"], "nats-server": ["nats-server", "--version"],
                "mosquitto": ["mosquitto", "-h"]}

    def versions(self):
        """What each program that is installed says that it is."""
        found = {}
        for name, command in self.programs().items():
            if shutil.which(command[0]):
                said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines()
                found[name] = re.search(r"\bv?(\d+\.\S+)", said[0])[1]
        return found

    def broker(self, run, name, config="", port=None):
        port = port or free_port()
        limits = "[limits]\nmailbox_messages = 50000\nmailbox_bytes = 1000000000\n"
        file = run.file(f"{name}.toml", f'listen = ["tcp://127.0.0.1:{port}"]\n{limits}{config}')
        run.start(name, self.built / "mqbroker", "--config", file)
        run.listens(port)
        return f"tcp://127.0.0.1:{port}"

    def start_again(self, run, name):
        """Starts a broker that has ended, with its file, and waits until it serves: its port is open before."""
        run.start(name, self.built / "mqbroker", "--config", run.folder / f"{name}.toml", "--announce")
        run.says(name, "ready", 300)

    def one(self, run):
        url = self.broker(run, "one")
        return [url, url]

    def one_store(self, run):
        url = self.broker(run, "one", f'[store]\npath = "{run.folder}/store"\ndurability = "always"\n')
        return [url, url]

    def cluster(self, run, nodes):
        servers, routes, http = ([free_port() for _ in range(3)] for _ in range(3))
        run.http = http
        everyone = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for number, (port, route) in enumerate(zip(servers, routes)):
            config = run.file(f"nats-{number}.conf", f"""server_name: n{number}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{http[number]}
max_payload: 8MB
jetstream {{ store_dir: "{run.folder}/nats-{number}", sync_interval: always }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{everyone}] }}
""")
            run.start(f"nats-{number}", "nats-server", "-c", config)
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in servers)
        return [self.broker(run, node, f'[cluster]\nnode = "{node}"\nservers = [{listed}]\nreplicas = 3\n')
                for node in "abcdefghi"[:nodes]]

    def bridge(self, run):
        cloud = self.broker(run, "cloud")
        config = f"""[store]
path = "{run.folder}/store"
[[bridge]]
name = "cloud"
address = ["{cloud}"]
[[bridge.topic]]
pattern = "#"
direction = "out"
qos = 2
"""
        return [self.broker(run, "edge", config), cloud]

    def mosquitto(self, run):
        url = self.one_mosquitto(run, "one")
        return [url, url]

    def mosquitto_bridge(self, run):
        cloud = self.one_mosquitto(run, "cloud")
        address = cloud.removeprefix("tcp://")
        bridge = f"connection cloud\naddress {address}\nbridge_protocol_version mqttv311\ncleansession false\ntopic # out 2\n"
        return [self.one_mosquitto(run, "edge", bridge), cloud]

    def one_mosquitto(self, run, name, more=""):
        port = free_port()
        user = "user root\n" if os.geteuid() == 0 else ""
        config = run.file(f"{name}.conf", f"{user}listener {port} 127.0.0.1\nallow_anonymous true\n"
                          f"max_queued_messages 0\nset_tcp_nodelay true\n{more}")
        run.start(name, "mosquitto", "-c", config)
        run.listens(port)
        return f"tcp://127.0.0.1:{port}"
