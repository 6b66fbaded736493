"""One run of `bench/relay-links`, inside a shell of `mqbench lab`: starts the programs on their hosts, measures, and prints
what it found as one line of JSON. Its argument is what was asked, as JSON.

It starts itself once more on the publisher's host and on the broker's, as client and as receiver."""

import json
import pathlib
import queue
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import paho.mqtt.client as mqtt

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from brokers.measure import percentile  # noqa: E402
from brokers.suts import identity  # noqa: E402

BROKER = "10.77.0.2"
PUBLISHER = "10.77.0.1"
MOVED_TO = "10.77.0.77"
MAC_OF_BROKER, MAC_OF_PUBLISHER = "02:4d:51:00:00:02", "02:4d:51:00:00:01"
TOPIC = "relay-links"
# Seconds after the first message at which the host of the publisher gets another address.
MOVES_AFTER = 4


class ResumingContext(ssl.SSLContext):
    """TLS that resumes the session of the connection before."""

    session = None

    def wrap_socket(self, *args, **kwargs):
        return super().wrap_socket(*args, session=self.session, **kwargs)


class Client:
    """Paho as it comes, over TLS if there is a context."""

    def __init__(self, asked, host, port, name, context=None):
        self.asked, self.host, self.port = asked, host, port
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        if context:
            self.client.tls_set_context(context)
        self.connected, self.published = queue.Queue(), queue.Queue()
        self.client.on_connect = self.on_connect
        self.client.on_publish = lambda *_: self.published.put(time.monotonic_ns())

    def on_connect(self, _client, _user, _flags, reason, _properties):
        self.connected.put((time.monotonic_ns(), reason))

    def connect(self):
        self.client.connect(self.host, self.port, keepalive=self.asked["keep_alive_s"])
        self.client.loop_start()

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


def trusting(asked, kind=ssl.SSLContext):
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(asked["chain"])
    return context


def first_messages(asked):
    """Times of new connections; a relay beside the client that has no ticket is one that was just started."""
    is_full = asked["shape"] == "relays full handshake"
    context = None
    if asked["relay"] is None:
        context = trusting(asked, ResumingContext if asked["shape"] == "TLS resumed" else ssl.SSLContext)
    relay = None if asked["relay"] is None or is_full else beside(asked)
    found = {"connack_ns": [], "message_ns": []}
    failed = resumed = 0
    # The first connection gets tickets, and is not counted.
    for number in range(asked["connections"] + 1):
        if is_full:
            relay = beside(asked)
        port = relay[1] if relay else 8883
        client = Client(asked, "127.0.0.1" if relay else BROKER, port, f"first-{number}", context)
        begun = time.monotonic_ns()
        try:
            client.connect()
            connected, reason = client.connected.get(timeout=asked["patience_s"])
            if reason.is_failure:
                raise OSError(str(reason))
            client.client.publish(TOPIC, bytes(asked["payload_bytes"]), qos=1)
            published = client.published.get(timeout=asked["patience_s"])
            if number:
                found["connack_ns"].append(connected - begun)
                found["message_ns"].append(published - begun)
            if isinstance(context, ResumingContext):
                resumed += client.client.socket().session_reused
                context.session = client.client.socket().session
        except (OSError, queue.Empty):
            failed += 1
        client.close()
        if is_full:
            end(relay)
        time.sleep(0.1)
    if relay and not is_full:
        end(relay)
    return {name: summary(values) for name, values in found.items()} | {"failed": failed, "resumed": resumed}


def flow(asked):
    """Publishes at an even rate, and goes on where the connection is lost, as paho does."""
    relay = None if asked["relay"] is None else beside(asked)
    context = None if relay else trusting(asked)
    client = Client(asked, "127.0.0.1" if relay else BROKER, relay[1] if relay else 8883, "flow", context)
    client.connect()
    client.connected.get(timeout=asked["patience_s"])
    begun = time.monotonic()
    moved = None
    for number in range(asked["messages"]):
        time.sleep(max(0.0, begun + number * asked["interval_ms"] / 1e3 - time.monotonic()))
        if asked["part"] == "moves" and moved is None and time.monotonic() - begun > MOVES_AFTER:
            moved = time.monotonic_ns()
            # The hosts of a lab answer no ARP.
            run("ip", "address", "delete", f"{PUBLISHER}/24", "dev", "mq0")
            run("ip", "address", "add", f"{MOVED_TO}/24", "dev", "mq0")
            run("ip", "neighbour", "replace", BROKER, "lladdr", MAC_OF_BROKER, "dev", "mq0")
        payload = f"{number} {time.monotonic_ns()}".encode().ljust(asked["payload_bytes"])
        client.client.publish(TOPIC, payload, qos=1)
    print(json.dumps({"sent": number + 1, "moved_ns": moved}), flush=True)
    # The receiver ends the run.
    sys.stdin.readline()
    client.close()
    if relay:
        end(relay)


def receive(asked):
    """Times at which each message was sent and came, once all are there or patience is over."""
    arrivals = {}
    there = threading.Event()
    client = Client(asked, "127.0.0.1", 1883, "receiver")

    def on_message(_client, _user, message):
        number, sent = map(int, message.payload.split())
        arrivals.setdefault(number, (sent, time.monotonic_ns()))

    client.client.on_message = on_message
    client.client.on_subscribe = lambda *_: there.set()
    client.connect()
    client.connected.get(timeout=asked["patience_s"])
    client.client.subscribe(TOPIC, qos=1)
    if not there.wait(asked["patience_s"]):
        sys.exit("no SUBACK")
    print("subscribed", flush=True)
    sent = json.loads(sys.stdin.readline())["sent"]
    until = time.monotonic() + asked["patience_s"]
    while len(arrivals) < sent and time.monotonic() < until:
        time.sleep(0.05)
    client.close()
    print(json.dumps(sorted(arrivals.values())), flush=True)


def beside(asked):
    """Starts a relay beside the client; returns it with its port."""
    relay = subprocess.Popen([f"{asked['built']}/mq", "relay", "--listen", "mqtt://127.0.0.1:0", "--to", f"quic://{BROKER}:14567",
                              "--cafile", asked["chain"], *asked["relay"]["both"], *asked["relay"]["beside"]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return relay, int(relay.stdout.readline().split()[0].rpartition(":")[2])


def end(relay):
    relay[0].kill()
    relay[0].wait()


def run(*command):
    subprocess.run(command, check=True, timeout=10)


def on(asked, host, *command, **options):
    return subprocess.Popen([f"{asked['built']}/mqbench", "lab", "exec", host, *map(str, command)], text=True, **options)


def itself(asked, host, role):
    return on(asked, host, sys.executable, __file__, json.dumps(asked), role, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def summary(values):
    if not values:
        return {"n": 0}
    return {"n": len(values), "mean": statistics.fmean(values), "p50": statistics.median(values), "p95": percentile(values, 0.95),
            "p99": percentile(values, 0.99), "max": max(values)}


def main(asked, folder):
    chain, key = identity(folder, f"IP:{BROKER}, IP:127.0.0.1, DNS:localhost").values()
    key.chmod(0o644)
    folder.chmod(0o755)
    config = folder / "mosquitto.conf"
    config.write_text(f"allow_anonymous true\nmax_inflight_messages 0\nset_tcp_nodelay true\nlistener 1883\nlistener 8883\n"
                      f"certfile {chain}\nkeyfile {key}\n")
    asked["chain"] = str(chain)
    with (folder / "log").open("w") as log:
        started = [on(asked, "broker", asked["mosquitto"], "-c", config, stdout=log, stderr=log)]
        if asked["relay"] is not None:
            started.append(on(asked, "broker", f"{asked['built']}/mq", "relay", "--listen", f"quic://{BROKER}:14567", "--cert", chain,
                              "--key", key, "--to", "mqtt://127.0.0.1:1883", *asked["relay"]["both"], stdout=log, stderr=log))
        on(asked, "broker", "ip", "neighbour", "replace", MOVED_TO, "lladdr", MAC_OF_PUBLISHER, "dev", "mq0").wait(10)
        time.sleep(1.5)
        try:
            if asked["part"] == "first":
                client = itself(asked, "publisher", "first")
                found = json.loads(client.communicate(timeout=1_700)[0])
            else:
                found = flow_between(asked)
        finally:
            for program in reversed(started):
                program.terminate()
                program.wait()
    print(json.dumps(found))


def flow_between(asked):
    receiver = itself(asked, "broker", "receive")
    if receiver.stdout.readline() != "subscribed\n":
        sys.exit("the receiver has not subscribed")
    client = itself(asked, "publisher", "flow")
    said = json.loads(client.stdout.readline())
    arrivals = json.loads(receiver.communicate(json.dumps(said) + "\n", timeout=300)[0])
    client.communicate("\n", timeout=60)
    found = {"sent": said["sent"], "came": len(arrivals), "delay_ns": summary([at - sent for sent, at in arrivals])}
    if said["moved_ns"]:
        times = sorted(at for _, at in arrivals)
        after = [(one, next_) for one, next_ in zip(times, times[1:]) if next_ > said["moved_ns"]]
        found["pause_ns"] = max((next_ - one for one, next_ in after), default=None)
    return found


if __name__ == "__main__":
    the_asked = json.loads(sys.argv[1])
    if len(sys.argv) > 2:
        part = {"first": lambda asked: print(json.dumps(first_messages(asked))), "flow": flow, "receive": receive}[sys.argv[2]]
        part(the_asked)
    else:
        with tempfile.TemporaryDirectory() as the_folder:
            main(the_asked, pathlib.Path(the_folder))
