"""Home Assistant by Eclipse Paho for Python, with the options that it gives it, at a broker of docs/guide/home.md.

Arguments: mqbroker, its configuration, CA file. Prints one line a test; exit status 1 if any fails.
"""

import atexit
import queue
import signal
import ssl
import subprocess
import sys
import traceback
import uuid
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt

PATIENCE = 20
VERSIONS = {"3.1.1": mqtt.MQTTv311, "5.0": mqtt.MQTTv5}
STATUS = "homeassistant/status"


class Broker:
    """A broker as its own process, at the same ports after a restart."""

    def __init__(self, program, config):
        self.command = [program, "--config", config, "--announce"]
        self.start()
        atexit.register(lambda: self.process.kill())

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.urls = {}
        for line in self.process.stdout:
            if line == "ready\n":
                return
            self.urls[line.split(":")[0]] = line.strip()
        raise AssertionError("the broker has ended")

    def restart(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.start()


class HomeAssistant:
    """Paho's client as Home Assistant sets it up; also as another user, without a will."""

    def __init__(self, url, version, ca, user="homeassistant", password=None, ws_path="/mqtt"):
        at = urlsplit(url)
        is_v5 = version == mqtt.MQTTv5
        self.client = mqtt.Client(
            callback_api_version=mqtt.CallbackAPIVersion.VERSION2,
            client_id=mqtt._base62(uuid.uuid4().int, padding=22),
            clean_session=None if is_v5 else True,
            protocol=version,
            transport="websockets" if at.scheme == "wss" else "tcp",
            reconnect_on_failure=False,
        )
        self.client.username_pw_set(user, password or f"secret-{user}")
        if at.scheme == "wss":
            self.client.ws_set_options(ws_path, {})
        if at.scheme in ("mqtts", "wss"):
            self.client.tls_set(ca, certfile=None, keyfile=None, tls_version=ssl.PROTOCOL_TLS_CLIENT)
        if user == "homeassistant":
            self.client.will_set(topic=STATUS, payload="offline", qos=0, retain=False)
        self.messages = queue.Queue()
        self.connected = queue.Queue()
        self.granted = queue.Queue()
        self.published = queue.Queue()
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.connected.put(code)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.put(codes)
        self.client.on_publish = lambda _c, _u, _m, code, _p: self.published.put(code)
        self.client.connect(
            host=at.hostname,
            port=at.port,
            keepalive=60,
            clean_start=True if is_v5 else mqtt.MQTT_CLEAN_START_FIRST_ONLY,
        )
        self.client.loop_start()
        self.code = self.connected.get(timeout=PATIENCE)

    def subscribe(self, *topics, qos=0):
        self.client.subscribe([(topic, qos) for topic in topics])
        codes = self.granted.get(timeout=PATIENCE)
        assert [code.value for code in codes] == [qos] * len(topics), codes

    def publish(self, topic, payload, qos=0, retain=False):
        self.client.publish(topic, payload, qos, retain)
        code = self.published.get(timeout=PATIENCE)
        assert not code.is_failure, code

    def next(self):
        return self.messages.get(timeout=PATIENCE)

    def stop(self):
        """Ends as Home Assistant does when it stops: without DISCONNECT."""
        self.client.loop_stop()
        self.client._sock_close()

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()


def discovery(name):
    return f"homeassistant/sensor/{name}/temperature/config", f"homeassistant/device/{name}/config"


def it_finds_devices_after_its_own_restart_and_the_brokers(program, broker, name):
    bridge = program("zigbee2mqtt")
    for topic in discovery(name):
        bridge.publish(topic, '{"name":"temperature"}', 1, True)
    bridge.leave()
    for _ in range(2):
        for _ in range(2):
            assistant = program("homeassistant")
            assistant.subscribe(f"homeassistant/+/{name}/config")
            assistant.subscribe(f"homeassistant/+/{name}/+/config")
            found = {message.topic: message.retain for message in (assistant.next(), assistant.next())}
            assert found == dict.fromkeys(discovery(name), True), found
            assistant.stop()
        broker.restart()


def devices_see_it_come_and_go(program, broker, name):
    bridge = program("zigbee2mqtt")
    bridge.subscribe(STATUS)
    assistant = program("homeassistant")
    assistant.publish(STATUS, "online", 0, False)
    assert bridge.next().payload == b"online"
    assistant.stop()
    assert bridge.next().payload == b"offline"
    bridge.leave()


def five_hundred_topics_fit_into_one_subscribe(program, broker, name):
    assistant = program("homeassistant")
    assistant.subscribe(*(f"zigbee2mqtt/{name}-{number}/availability" for number in range(500)))
    bridge = program("zigbee2mqtt")
    for number in (0, 250, 499):
        bridge.publish(f"zigbee2mqtt/{name}-{number}/availability", "online", 0, False)
        assert assistant.next().topic == f"zigbee2mqtt/{name}-{number}/availability"
    for each in (assistant, bridge):
        each.leave()


def a_command_of_each_qos_reaches_its_device(program, broker, name):
    plug = program("plug")
    plug.subscribe("cmnd/plug/#")
    assistant = program("homeassistant")
    for qos in (0, 1, 2):
        assistant.publish("cmnd/plug/POWER", str(qos), qos)
        message = plug.next()
        assert (message.payload, message.qos) == (str(qos).encode(), 0), message.qos
    for each in (assistant, plug):
        each.leave()


def a_list_of_three_megabytes_comes_whole(program, broker, name):
    assistant = program("homeassistant")
    assistant.subscribe("zigbee2mqtt/bridge/devices")
    bridge = program("zigbee2mqtt")
    bridge.publish("zigbee2mqtt/bridge/devices", b"x" * 3_000_000, 0, True)
    while not (message := assistant.next()).payload:
        pass
    assert len(message.payload) == 3_000_000
    bridge.publish("zigbee2mqtt/bridge/devices", b"", 1, True)
    for each in (assistant, bridge):
        each.leave()


def a_wrong_password_has_a_code_after_which_it_asks_for_another(program, broker, name):
    refused = program("homeassistant", password="secret", is_refused=True)
    assert refused.code.value == 134, refused.code
    refused.client.loop_stop()


def over_websocket_the_path_counts(program, broker, name):
    if not name.startswith("wss"):
        return
    try:
        program("homeassistant", ws_path="/")
    except mqtt.WebsocketConnectionError:
        return
    raise AssertionError("another path leads to the broker")


TESTS = [
    it_finds_devices_after_its_own_restart_and_the_brokers,
    devices_see_it_come_and_go,
    five_hundred_topics_fit_into_one_subscribe,
    a_command_of_each_qos_reaches_its_device,
    a_list_of_three_megabytes_comes_whole,
    a_wrong_password_has_a_code_after_which_it_asks_for_another,
    over_websocket_the_path_counts,
]


def main():
    program, config, ca = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    broker = Broker(program, config)
    failed = 0
    for scheme in ("mqtt", "mqtts", "wss"):
        for number, version in VERSIONS.items():
            for test in TESTS:
                name = f"home/home-assistant/{scheme}/{number}/{test.__name__}"

                def start(user, password=None, is_refused=False, ws_path="/mqtt"):
                    client = HomeAssistant(broker.urls[scheme], version, ca, user, password, ws_path)
                    assert client.code.is_failure == is_refused, client.code
                    return client

                try:
                    test(start, broker, f"{scheme}-{version}")
                    print(f"ok {name}")
                except Exception:
                    failed += 1
                    print(f"FAILED {name}\n{traceback.format_exc()}")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
