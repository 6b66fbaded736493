"""Flow headers of MQTT-next, which mqtt5 uses too, and a subscriber that reads wherever the broker delivers.

Numbers are variable-length integers of QUIC (RFC 9000 §16).
"""

import asyncio

from aioquic.buffer import UINT_VAR_MAX_SIZE, Buffer, BufferReadError

import mqtt
from quic import PATIENCE, SILENCE

CONTROL, CLIENT_DATA, SERVER_DATA, USER_DEFINED = 0x11, 0x12, 0x13, 0x14

# The draft lists the flags "from the first bit". mqtt5 reads that as the lowest bit, RFC 9000 §1.3 as the highest;
# `suite.py --first-bit` says which. Error tolerance takes two bits.
FIELDS = {"clean": 1, "abort_if_no_state": 1, "err_tolerance": 2, "persistent_qos": 1, "persistent_topic_alias": 1,
          "persistent_subscriptions": 1, "optional_headers": 1}
first_bit = "high"

# Application error codes, of a stream and of a connection.
NO_FLOW_STATE = {0xB3, 0xC1}
NOT_FLOW_OWNER, STREAM_TYPE, BAD_FLOW_ID, PERSISTENT_SUB, OPTIONAL_HEADER, INCOMPLETE_PACKET = \
    0xB4, 0xB5, 0xB6, 0xB8, 0xB9, 0xBA
FLOW_CANCELLED, FLOW_PACKET_CANCELLED, FLOW_REFUSED, DISCARD_STATE = 0xBC, 0xBD, 0xBE, 0xBF
TOO_MANY_RECOVER_ATTEMPTS, PROTOCOL_L0 = 0xB3, 0xB4


def varint(value):
    buffer = Buffer(capacity=UINT_VAR_MAX_SIZE)
    buffer.push_uint_var(value)
    return buffer.data


def flags(**given):
    """The flags' byte, as in `flags(clean=1, err_tolerance=2)`."""
    value, at = 0, 0
    for name, width in FIELDS.items():
        shift = at if first_bit == "low" else 8 - at - width
        value |= given.pop(name, 0) << shift
        at += width
    assert not given, given
    return bytes([value])


def control_header(**given):
    return varint(CONTROL) + varint(0) + flags(**given)


def data_header(id, expire=300, kind=CLIENT_DATA, **given):
    return varint(kind) + varint(id) + varint(expire) + flags(**given)


def take_header(raw):
    """Takes a data flow's header off the front of what arrived: its type, id, expire interval and flags, or None."""
    buffer = Buffer(data=bytes(raw))
    try:
        header = (buffer.pull_uint_var(), buffer.pull_uint_var(), buffer.pull_uint_var(), buffer.pull_uint8())
    except BufferReadError:
        return None
    del raw[: buffer.tell()]
    return header


class Subscriber:
    """Reads messages from the control stream and from every stream that the broker opens.

    Each is acknowledged on the stream that it came on. mqtt5's broker reads PUBREC there, but sends PUBREL on the
    control stream.
    """

    def __init__(self, peer, control):
        self.peer, self.control = peer, control
        self.headers = {}
        # What came and was not asked for yet: messages, and what is none, each with its stream.
        self.messages = []
        self.others = []

    def streams(self):
        opened = [each for each in self.peer.streams.values() if each.id & 1]
        for stream in opened:
            if stream.id not in self.headers:
                header = take_header(stream.raw)
                if header:
                    self.headers[stream.id] = header
        return [self.control, *(each for each in opened if each.id in self.headers)]

    def sort(self, stream, one):
        """Answers a PUBREL that came on another stream than its message, and keeps every other packet."""
        owed = [each for each in self.streams() if one.id in each.received]
        if one.kind == mqtt.PUBREL and owed:
            owed[0].received.remove(one.id)
            stream.send(mqtt.acknowledge(mqtt.PUBCOMP, one.id))
        else:
            self.others.append((stream, one))

    def collect(self):
        """Takes in all that has arrived, and acknowledges the messages."""
        for stream in self.streams():
            while one := stream.next():
                if one.kind != mqtt.PUBLISH:
                    self.sort(stream, one)
                    continue
                if one.qos:
                    assert not stream.unidirectional, f"{stream}: QoS {one.qos} cannot be acknowledged there"
                    stream.send(mqtt.acknowledge(mqtt.PUBACK if one.qos == 1 else mqtt.PUBREC, one.id))
                if one.qos == 2:
                    stream.received.add(one.id)
                self.messages.append((stream, one))

    def look(self):
        """The next message that has arrived and its stream, or None."""
        self.collect()
        return self.messages.pop(0) if self.messages else None

    async def placed_message(self, patience=PATIENCE):
        """The next message and the stream that it came on."""
        found = []

        def arrived():
            found.extend([each] if (each := self.look()) else [])
            return found or self.peer.closed

        await self.peer.until(arrived, "a message", patience)
        assert found, f"the connection was closed with {self.peer.closed}"
        return found[0]

    async def message(self):
        return (await self.placed_message())[1]

    async def other(self, kind, id, patience=PATIENCE):
        """The next packet of this kind and identifier, on whatever stream it comes, and its stream."""
        found = []

        def arrived():
            self.collect()
            for each in self.others:
                if each[1].kind == kind and each[1].id == id and not found:
                    self.others.remove(each)
                    found.append(each)
                    break
            return found or self.peer.closed

        await self.peer.until(arrived, f"{mqtt.NAMES[kind]} {id}", patience)
        assert found, f"the connection was closed with {self.peer.closed}"
        return found[0]

    async def publish_on(self, stream, topic, payload=b"", qos=0, id=1, back=None):
        """Publishes on `stream`; the answers may come anywhere, and PUBREL goes where PUBREC came, or to `back`."""
        stream.send(mqtt.publish(topic, payload, qos, id))
        if qos == 1:
            _, got = await self.other(mqtt.PUBACK, id)
            assert got.code in (0, 0x10), got
        elif qos == 2:
            place, got = await self.other(mqtt.PUBREC, id)
            assert got.code in (0, 0x10), got
            (back or place).send(mqtt.acknowledge(mqtt.PUBREL, id))
            await self.other(mqtt.PUBCOMP, id)

    async def silent(self, seconds=SILENCE):
        await asyncio.sleep(seconds)
        one = self.look()
        assert one is None, f"nothing wanted, {one[1]} came on {one[0]}"
        owed = {stream.id: stream.received for stream in self.streams() if stream.received}
        assert not owed, f"PUBREL did not come: {owed}"


async def subscriber(world, *filters, qos=2, client="watcher", **options):
    """A client of its own that has subscribed on its control stream and reads wherever messages come."""
    peer, control = await world.session(client, **options)
    await control.subscribe(*filters, qos=qos)
    return Subscriber(peer, control)
