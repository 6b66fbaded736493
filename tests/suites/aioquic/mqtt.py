"""Just enough of MQTT 5.0 for a raw QUIC client: what a client sends is encoded, what a server sends is decoded.

The clauses named are those of the OASIS standard. Nothing here knows of streams.
"""

from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, \
    PINGRESP, DISCONNECT, AUTH = range(1, 16)
NAMES = "reserved CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK PINGREQ " \
    "PINGRESP DISCONNECT AUTH".split()

# §2.2.2.2, by the type of the value.
BYTE = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}
TWO_BYTES = {0x13, 0x21, 0x22, 0x23}
FOUR_BYTES = {0x02, 0x11, 0x18, 0x27}
NUMBER = {0x0B}
PAIR = {0x26}
SESSION_EXPIRY = 0x11


class Malformed(Exception):
    """The peer sent something that is no packet of MQTT 5.0."""


@dataclass
class Packet:
    """A packet from a server; a field that its kind does not have keeps its default."""

    kind: int
    flags: int = 0
    id: int = 0
    topic: str = ""
    payload: bytes = b""
    codes: list = field(default_factory=list)
    session_present: bool = False

    @property
    def qos(self):
        return self.flags >> 1 & 3

    @property
    def code(self):
        """The reason code, which is 0 where the packet leaves it out (§3.4.2.1)."""
        return self.codes[0] if self.codes else 0

    def __str__(self):
        return f"{NAMES[self.kind]} id={self.id} codes={[hex(code) for code in self.codes]} {self.topic} " \
            f"{self.payload[:40]!r}"


def number(value):
    """A Variable Byte Integer (§1.5.5)."""
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (128 if value else 0))
        if not value:
            return bytes(out)


def binary(value):
    if isinstance(value, str):
        value = value.encode()
    return len(value).to_bytes(2, "big") + value


def packet(kind, flags, body):
    return bytes([kind << 4 | flags]) + number(len(body)) + body


def connect(client, user=None, password=None, clean=True, expiry=0, keep_alive=60, will=None):
    """CONNECT (§3.1). `will` is a topic and a payload, at QoS 1."""
    flags = 2 if clean else 0
    properties = bytes([SESSION_EXPIRY]) + expiry.to_bytes(4, "big") if expiry else b""
    payload = binary(client)
    if will:
        flags |= 4 | 1 << 3
        payload += b"\0" + binary(will[0]) + binary(will[1])
    if user is not None:
        flags |= 0xC0
        payload += binary(user) + binary(password)
    head = binary("MQTT") + bytes([5, flags]) + keep_alive.to_bytes(2, "big")
    return packet(CONNECT, 0, head + number(len(properties)) + properties + payload)


def publish(topic, payload=b"", qos=0, id=0, dup=False, retain=False):
    if isinstance(payload, str):
        payload = payload.encode()
    which = id.to_bytes(2, "big") if qos else b""
    return packet(PUBLISH, dup << 3 | qos << 1 | retain, binary(topic) + which + b"\0" + payload)


def acknowledge(kind, id):
    """PUBACK, PUBREC, PUBREL or PUBCOMP with success, in its short form (§3.4.2.1)."""
    return packet(kind, 2 if kind == PUBREL else 0, id.to_bytes(2, "big"))


def subscribe(id, *filters, qos=0):
    return packet(SUBSCRIBE, 2, id.to_bytes(2, "big") + b"\0" + b"".join(binary(each) + bytes([qos]) for each in filters))


def unsubscribe(id, *filters):
    return packet(UNSUBSCRIBE, 2, id.to_bytes(2, "big") + b"\0" + b"".join(binary(each) for each in filters))


def pingreq():
    return packet(PINGREQ, 0, b"")


def disconnect(code=0):
    return packet(DISCONNECT, 0, bytes([code]) if code else b"")


def auth():
    """AUTH that continues (0x18) with the method `none`."""
    properties = b"\x15" + binary("none")
    return packet(AUTH, 0, b"\x18" + number(len(properties)) + properties)


class Reader:
    """Takes values off the front of a packet's body."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise Malformed(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, count):
        return int.from_bytes(self.take(count), "big")

    def number(self):
        value = 0
        for place in range(4):
            each = self.integer(1)
            value |= (each & 127) << 7 * place
            if each < 128:
                return value
        raise Malformed("a Variable Byte Integer of more than four bytes")

    def text(self):
        return self.take(self.integer(2)).decode()

    def left(self):
        return len(self.data) - self.at

    def skip_properties(self):
        end = self.number() + self.at
        while self.at < end:
            which = self.number()
            if which in PAIR:
                self.text(), self.text()
            elif which in NUMBER:
                self.number()
            else:
                known = 1 if which in BYTE else 2 if which in TWO_BYTES else 4 if which in FOUR_BYTES else None
                self.take(self.integer(2) if known is None else known)
        if self.at != end:
            raise Malformed("properties do not end where they should")


def decode(buffer):
    """Takes one whole packet off the front of `buffer` (a bytearray), or returns None."""
    length = 0
    for place in range(4):
        if len(buffer) < place + 2:
            return None
        length |= (buffer[place + 1] & 127) << 7 * place
        if buffer[place + 1] < 128:
            break
    else:
        raise Malformed("a Remaining Length of more than four bytes")
    start = place + 2
    if len(buffer) < start + length:
        return None
    first, body = buffer[0], Reader(bytes(buffer[start : start + length]))
    del buffer[: start + length]
    return from_server(first >> 4, first & 15, body)


def from_server(kind, flags, body):
    out = Packet(kind, flags)
    if kind == CONNACK:
        out.session_present = bool(body.integer(1) & 1)
        out.codes = [body.integer(1)]
        body.skip_properties()
    elif kind == PUBLISH:
        out.topic = body.text()
        out.id = body.integer(2) if out.qos else 0
        body.skip_properties()
        out.payload = body.take(body.left())
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        out.id = body.integer(2)
        if body.left():
            out.codes = [body.integer(1)]
        if body.left():
            body.skip_properties()
    elif kind in (SUBACK, UNSUBACK):
        out.id = body.integer(2)
        body.skip_properties()
        out.codes = list(body.take(body.left()))
    elif kind in (DISCONNECT, AUTH):
        if body.left():
            out.codes = [body.integer(1)]
        if body.left():
            body.skip_properties()
    elif kind != PINGRESP:
        raise Malformed(f"a server sent a packet of type {kind}")
    if body.left():
        raise Malformed(f"{NAMES[kind]} with {body.left()} bytes too many")
    return out
