"""Eclipse Paho for Python against a broker: every QoS, retained messages, wills, kept sessions.

Arguments: CA file, then URLs such as mqtt://127.0.0.1:1883. Environment: BROKER_USER, BROKER_PASSWORD.
Prints one line a test; exit status 1 if any fails.
"""

import os
import queue
import sys
import time
import traceback
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PATIENCE = 10
VERSIONS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5.0": mqtt.MQTTv5}


class Device:
    """A connected client whose messages wait in a queue."""

    def __init__(self, url, ca, version, name, clean=True, will=None):
        at = urlsplit(url)
        transport = "websockets" if at.scheme in ("ws", "wss") else "tcp"
        v5 = version == mqtt.MQTTv5
        options = {} if v5 else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, name, protocol=version, transport=transport, **options
        )
        if transport == "websockets":
            self.client.ws_set_options(path=at.path or "/mqtt")
        if at.scheme in ("mqtts", "wss"):
            self.client.tls_set(ca)
        if "BROKER_USER" in os.environ:
            self.client.username_pw_set(os.environ["BROKER_USER"], os.environ["BROKER_PASSWORD"])
        if will:
            self.client.will_set(*will)
        self.messages = queue.Queue()
        self.connected = queue.Queue()
        self.granted = queue.Queue()
        self.published = queue.Queue()
        self.gone = queue.Queue()
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _u, flags, code, _p: self.connected.put((flags, code))
        self.client.on_subscribe = lambda _c, _u, mid, codes, _p: self.granted.put(codes)
        self.client.on_publish = lambda _c, _u, mid, code, _p: self.published.put(code)
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self.gone.put(code)
        properties = None
        if v5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if clean else 60
            options = {"clean_start": clean, "properties": properties}
        else:
            options = {}
        self.client.connect(at.hostname, at.port, keepalive=30, **options)
        self.client.loop_start()
        flags, code = self.connected.get(timeout=PATIENCE)
        assert not code.is_failure, code
        self.session_present = flags.session_present

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        codes = self.granted.get(timeout=PATIENCE)
        assert [code.value for code in codes] == [qos], codes

    def publish(self, topic, payload, qos, retain=False):
        self.client.publish(topic, payload, qos, retain)
        code = self.published.get(timeout=PATIENCE)
        assert not code.is_failure, code

    def next(self):
        return self.messages.get(timeout=PATIENCE)

    def silent(self):
        time.sleep(0.2)
        assert self.messages.empty(), self.messages.get().payload

    def leave(self):
        self.client.disconnect()
        self.gone.get(timeout=PATIENCE)
        self.client.loop_stop()

    def break_off(self):
        """Ends without DISCONNECT."""
        self.client.loop_stop()
        self.client._sock_close()


def every_qos(device, name):
    one = device("one")
    for qos in (0, 1, 2):
        one.subscribe(f"{name}/{qos}", qos)
        for sent in (0, 1, 2):
            one.publish(f"{name}/{qos}", f"{sent}", sent)
            got = one.next()
            assert (got.payload, got.qos) == (str(sent).encode(), min(qos, sent)), got.qos
    one.leave()


def large_payload(device, name):
    one = device("one")
    one.subscribe(name, 1)
    payload = bytes(range(256)) * 2000
    one.publish(name, payload, 1)
    assert one.next().payload == payload
    one.leave()


def retained(device, name):
    one = device("one")
    one.publish(name, "kept", 1, True)
    two = device("two")
    two.subscribe(f"{name}/#", 1)
    got = two.next()
    assert got.payload == b"kept" and got.retain
    one.publish(name, "", 1, True)
    two.next()
    three = device("three")
    three.subscribe(name, 1)
    three.silent()
    for each in (one, two, three):
        each.leave()


def will(device, name):
    watcher = device("watcher")
    watcher.subscribe(name, 2)
    polite = device("polite", will=(name, "polite", 1))
    polite.leave()
    watcher.silent()
    device("rude", will=(name, "rude", 1)).break_off()
    assert watcher.next().payload == b"rude"
    watcher.leave()


def kept_session(device, name):
    kept = device("kept", clean=False)
    assert not kept.session_present
    kept.subscribe(name, 2)
    kept.leave()
    writer = device("writer")
    for number in range(20):
        writer.publish(name, str(number), 2)
    again = device("kept", clean=False)
    for number in range(20):
        assert again.next().payload == str(number).encode()
    again.silent()
    for each in (writer, again):
        each.leave()
    device("kept").leave()


def take_over(device, name):
    first = device("same")
    second = device("same")
    first.gone.get(timeout=PATIENCE)
    first.client.loop_stop()
    second.subscribe(name, 1)
    second.publish(name, "x", 1)
    assert second.next().payload == b"x"
    second.leave()


def wildcards_and_unsubscribe(device, name):
    one = device("one")
    one.subscribe(f"{name}/+/b", 0)
    one.publish(f"{name}/a/b", "yes", 0)
    assert one.next().payload == b"yes"
    one.client.unsubscribe(f"{name}/+/b")
    time.sleep(0.2)
    one.publish(f"{name}/a/b", "no", 1)
    one.silent()
    one.leave()


TESTS = [
    every_qos,
    large_payload,
    retained,
    will,
    kept_session,
    take_over,
    wildcards_and_unsubscribe,
]


def main():
    ca, *urls = sys.argv[1:]
    failed = 0
    for url in urls:
        scheme = urlsplit(url).scheme
        for number, version in VERSIONS.items():
            for test in TESTS:
                name = f"paho/{scheme}/{number}/{test.__name__}"

                def device(client_id, clean=True, will=None):
                    # MQTT 3.1 has 23 characters at most.
                    return Device(url, ca, version, f"{scheme}-{client_id}", clean, will)

                try:
                    test(device, name)
                    print(f"ok {name}")
                except Exception:
                    failed += 1
                    print(f"FAILED {name}\n{traceback.format_exc()}")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
