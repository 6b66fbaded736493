"""Eclipse Paho for Python as a client that follows lines: `HOST PORT VERSION ID CLEAN [WILL]`; see suite.py."""

import os
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

host, port, version, name, clean, *will = sys.argv[1:]
v5 = version == "5.0"
FIELDS = {
    "PayloadFormatIndicator": "format",
    "MessageExpiryInterval": "expiry",
    "ContentType": "type",
    "ResponseTopic": "response",
    "CorrelationData": "correlation",
}


def say(*words):
    print(*words, flush=True)


def fields(message):
    if not v5:
        return "-"
    has = []
    for name, word in FIELDS.items():
        value = getattr(message.properties, name, None)
        if value is not None:
            has.append(f"{word}={value.hex() if isinstance(value, bytes) else value}")
    for key, value in getattr(message.properties, "UserProperty", []):
        has.append(f"user={key}:{value}")
    return ",".join(has) or "-"


def set_fields():
    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1
    properties.MessageExpiryInterval = 3600
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answer"
    properties.CorrelationData = b"\x00\xff"
    properties.UserProperty = [("a", "1"), ("a", "2")]
    return properties


def on_connect(_client, _data, flags, code, _properties):
    if code.is_failure:
        print("CONNACK:", code, file=sys.stderr, flush=True)
        os._exit(1)
    say("connected", int(flags.session_present))


def on_message(_client, _data, message):
    say("message", message.qos, int(message.retain), message.payload.hex(), fields(message))


client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2,
    name,
    protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311,
    reconnect_on_failure=False,
    **({} if v5 else {"clean_session": clean == "1"}),
)
client.on_connect = on_connect
client.on_message = on_message
client.on_subscribe = lambda _c, _u, _mid, codes, _p: say("subscribed", codes[0].value)
client.on_publish = lambda _c, _u, _mid, _code, _p: say("published")
if will:
    client.will_set(will[0], "gone", 1)
options = {}
if v5:
    options = {"clean_start": clean == "1", "properties": Properties(PacketTypes.CONNECT)}
    options["properties"].SessionExpiryInterval = 0 if clean == "1" else 60
client.connect(host, int(port), keepalive=30, **options)
client.loop_start()
for line in sys.stdin:
    match line.split():
        case ["sub", topic, qos]:
            client.subscribe(topic, int(qos))
        case ["pub", topic, qos, retain, payload, properties]:
            properties = set_fields() if properties == "1" else None
            client.publish(topic, bytes.fromhex(payload), int(qos), retain == "1", properties)
        case ["leave"]:
            client.disconnect()
            client.loop_stop()
            break
