"""Ways from a client to one broker that `bench/relay` compares: without anything between them, and through relays."""

from brokers.machine import raise_descriptors
from brokers.shapes import Shapes
from brokers.suts import free_port, identity, installed

# Settings of HAProxy that a relay has as well: a thread for each processor, no log, connections that stay. It does not start
# if its connections may need more descriptors than it may have: two each, and some of its own.
HAPROXY = """global
  maxconn {connections}
defaults
  mode tcp
  timeout connect 20s
  timeout client 1h
  timeout server 1h
"""


class Relays(Shapes):
    """Each starts one broker and what stands before it, and returns where clients go."""

    haproxy_program = installed("haproxy")

    def all(self):
        found = {
            "direct": self.direct,
            "mq relay": self.relay,
            "mq relay pair over TCP": lambda run: self.relay_pair(run, "mqtt"),
            "mq relay pair over TLS": lambda run: self.relay_pair(run, "mqtts"),
            "mq relay pair over QUIC": lambda run: self.relay_pair(run, "quic"),
        }
        if self.haproxy_program:
            found |= {"HAProxy": self.haproxy, "HAProxy pair over TCP": lambda run: self.haproxy_pair(run, False),
                      "HAProxy pair over TLS": lambda run: self.haproxy_pair(run, True)}
        return found

    def programs(self):
        ours = {name: [self.built / name, "--version"] for name in ("mqbroker", "mq")}
        return ours | ({"haproxy": [self.haproxy_program, "-v"]} if self.haproxy_program else {})

    def direct(self, run):
        url = self.broker(run, "one")
        run.before = []
        return [url, url]

    def relay(self, run):
        broker = self.broker(run, "one")
        url = self.one_relay(run, "relay", "mqtt", broker)
        run.before = ["relay"]
        return [url, url]

    def relay_pair(self, run, scheme):
        broker = self.broker(run, "one")
        chain, key = identity(run.folder).values()
        files = () if scheme == "mqtt" else ("--cert", chain, "--key", key)
        between = self.one_relay(run, "before", scheme, broker, *files)
        trust = () if scheme == "mqtt" else ("--cafile", chain)
        url = self.one_relay(run, "beside", "mqtt", between, *trust)
        run.before = ["before", "beside"]
        return [url, url]

    def one_relay(self, run, name, scheme, to, *more):
        port, run.metrics[name] = free_port(), free_port()
        url = f"{scheme}://127.0.0.1:{port}"
        run.start(name, self.built / "mq", "relay", "--listen", url, "--to", to, "--connections", 20_000, "--metrics",
                  f"127.0.0.1:{run.metrics[name]}", *more)
        if scheme != "quic":
            run.listens(port)
        return url

    def haproxy(self, run):
        broker = self.broker(run, "one")
        url = self.one_haproxy(run, "relay", broker)
        run.before = ["relay"]
        return [url, url]

    def haproxy_pair(self, run, has_tls):
        broker = self.broker(run, "one")
        bind, server = "", ""
        if has_tls:
            chain, key = identity(run.folder).values()
            both = run.file("both.pem", chain.read_text() + key.read_text())
            bind, server = f" ssl crt {both}", f" ssl verify required ca-file {chain} verifyhost localhost"
        between = self.one_haproxy(run, "before", broker, bind=bind)
        url = self.one_haproxy(run, "beside", between, server=server)
        run.before = ["before", "beside"]
        return [url, url]

    def one_haproxy(self, run, name, to, bind="", server=""):
        port = free_port()
        address = to.partition("://")[2]
        common = HAPROXY.format(connections=min(40_000, (raise_descriptors() - 200) // 2))
        config = run.file(f"{name}.cfg", f"{common}listen {name}\n  bind 127.0.0.1:{port}{bind}\n  server s {address}{server}\n")
        run.start(name, self.haproxy_program, "-f", config, "-db")
        run.listens(port)
        return f"mqtt://127.0.0.1:{port}"
