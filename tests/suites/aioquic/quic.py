"""A QUIC client whose streams are MQTT's to arrange: aioquic below, whole packets above.

`Peer` is one connection, `Stream` one stream of it. Nothing here says what a stream is for; the forms do.
"""

import asyncio
import copy
import socket
from urllib.parse import urlsplit

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

import mqtt

# How long the broker has for what it has to do, and how long a case watches that nothing comes, in seconds.
PATIENCE = 10
SILENCE = 0.3


async def until(changed, condition, patience, why):
    """Waits until `condition()`, which may come true when `changed` is set. `why` says what it has waited for."""
    async with asyncio.timeout(patience) as deadline:
        try:
            while not condition():
                changed.clear()
                await changed.wait()
        except asyncio.CancelledError:
            if deadline.expired():
                raise AssertionError(why()) from None
            raise


class Ended(Exception):
    """A stream or the connection ended while a packet was awaited."""


class Stream:
    """One stream: packets out and in, and how each direction ended."""

    def __init__(self, peer, number):
        self.peer, self.id = peer, number
        self.raw = bytearray()
        self.fin = False
        self.reset_by_peer = None
        self.stopped_by_peer = None
        self.changed = asyncio.Event()
        # QoS 2 messages that came and wait for PUBREL.
        self.received = set()

    def __str__(self):
        return f"stream {self.id}"

    @property
    def unidirectional(self):
        return bool(self.id & 2)

    @property
    def ended(self):
        """Whether the broker ended this stream, in either direction."""
        return self.fin or self.reset_by_peer is not None or self.stopped_by_peer is not None

    @property
    def codes(self):
        """The error codes with which the broker ended this stream."""
        return {code for code in (self.reset_by_peer, self.stopped_by_peer) if code is not None}

    def send(self, *pieces, fin=False):
        """Sends bytes. aioquic keeps what the broker's limits do not let it send yet."""
        self.peer._quic.send_stream_data(self.id, b"".join(pieces), end_stream=fin)
        self.peer.transmit()

    def reset(self, code=0):
        self.peer._quic.reset_stream(self.id, code)
        self.peer.transmit()

    def stop(self, code=0):
        """Asks the broker with STOP_SENDING to send nothing more on this stream."""
        self.peer._quic.stop_stream(self.id, code)
        self.peer.transmit()

    def unsent(self):
        """Whether the broker's stream limit holds this stream back, so that no byte of it has left."""
        stream = self.peer._quic._streams.get(self.id)
        return stream is not None and stream.is_blocked

    async def until(self, condition, what, patience=PATIENCE):
        """Waits until `condition()`. Whatever arrives on the stream wakes it."""
        late = f"{self}: {what} did not come within {patience} s"
        await until(self.changed, condition, patience, lambda: f"{late}; {self.state()}")

    def state(self):
        closed = f", connection closed with {self.peer.closed}" if self.peer.closed else ""
        held = ", held back by MAX_STREAMS" if self.unsent() else ""
        return f"fin={self.fin} reset={self.reset_by_peer} stopped={self.stopped_by_peer}{held}{closed}"

    def next(self):
        """The next whole packet that has arrived, or None. PUBREL of a message from `message` is answered on the way."""
        while one := mqtt.decode(self.raw):
            if one.kind != mqtt.PUBREL or one.id not in self.received:
                return one
            self.received.remove(one.id)
            self.send(mqtt.acknowledge(mqtt.PUBCOMP, one.id))
        return None

    async def packet(self, patience=PATIENCE):
        """The next packet on this stream."""
        found = []

        def look():
            one = self.next()
            if one:
                found.append(one)
            return bool(found) or self.fin or self.reset_by_peer is not None or self.peer.closed is not None

        await self.until(look, "a packet", patience)
        if not found:
            raise Ended(f"{self}: {self.state()}")
        return found[0]

    async def expect(self, kind, id=None, code=0):
        """The next packet, which has to be of this kind, with this identifier and this reason code.

        Success may say that nobody subscribes (0x10, §3.4.2.1).
        """
        got = await self.packet()
        good = code is None or got.code == code or (code, got.code) == (0, 0x10) and kind in (mqtt.PUBACK, mqtt.PUBREC)
        right = got.kind == kind and (id is None or got.id == id) and good
        assert right, f"{self}: {mqtt.NAMES[kind]} id={id} code={code} wanted, {got} came"
        return got

    async def message(self, acknowledge=True):
        """The next PUBLISH, acknowledged on this stream as its QoS wants it."""
        got = await self.expect(mqtt.PUBLISH, code=None)
        if acknowledge and got.qos == 1:
            self.send(mqtt.acknowledge(mqtt.PUBACK, got.id))
        elif acknowledge and got.qos == 2:
            self.send(mqtt.acknowledge(mqtt.PUBREC, got.id))
            self.received.add(got.id)
        return got

    async def silent(self, seconds=SILENCE):
        """Nothing arrives on this stream for a while, and no PUBREL is owed."""
        await asyncio.sleep(seconds)
        one = self.next()
        assert one is None and not self.raw, f"{self}: nothing wanted, {one or bytes(self.raw)} came"
        assert not self.received, f"{self}: PUBREL of {self.received} did not come"

    async def gone(self):
        """The broker ends this stream by RESET_STREAM or STOP_SENDING, and the connection lives."""
        await self.until(
            lambda: self.reset_by_peer is not None or self.stopped_by_peer is not None or self.peer.closed,
            "RESET_STREAM or STOP_SENDING",
        )
        assert not self.peer.closed, f"{self}: the whole connection was closed with {self.peer.closed}"

    async def publish(self, topic, payload=b"", qos=0, id=1):
        """Publishes, and sees it acknowledged on this stream."""
        self.send(mqtt.publish(topic, payload, qos, id))
        if qos == 1:
            await self.expect(mqtt.PUBACK, id)
        elif qos == 2:
            await self.expect(mqtt.PUBREC, id)
            self.send(mqtt.acknowledge(mqtt.PUBREL, id))
            await self.expect(mqtt.PUBCOMP, id)

    async def subscribe(self, *filters, qos=0, id=1):
        self.send(mqtt.subscribe(id, *filters, qos=qos))
        got = await self.expect(mqtt.SUBACK, id, code=None)
        assert got.codes == [qos] * len(filters), got

    async def unsubscribe(self, *filters, id=1):
        self.send(mqtt.unsubscribe(id, *filters))
        got = await self.expect(mqtt.UNSUBACK, id, code=None)
        assert got.codes == [0] * len(filters), got

    async def ping(self):
        self.send(mqtt.pingreq())
        await self.expect(mqtt.PINGRESP)


class Peer(QuicConnectionProtocol):
    """One connection."""

    def __init__(self, quic):
        super().__init__(quic)
        self.streams = {}
        self.from_server = asyncio.Queue()
        self.datagrams = asyncio.Queue()
        self.closed = None
        self.handshake = None
        self.changed = asyncio.Event()
        self.acknowledged = set()

    def open(self, unidirectional=False):
        """The client's next stream. Its first byte opens it for the broker."""
        number = self._quic.get_next_available_stream_id(is_unidirectional=unidirectional)
        self._quic._get_or_create_stream_for_send(number)
        self.streams[number] = Stream(self, number)
        return self.streams[number]

    def open_again(self, number):
        """The stream with this number, of those that an earlier, higher one has opened for the broker."""
        self.streams[number] = Stream(self, number)
        return self.streams[number]

    @property
    def granted(self):
        """How many bidirectional streams the broker has allowed by now, ended ones included (MAX_STREAMS)."""
        return self._quic._remote_max_streams_bidi

    @property
    def granted_unidirectional(self):
        return self._quic._remote_max_streams_uni

    def datagram(self, data):
        self._quic.send_datagram_frame(data)
        self.transmit()

    @property
    def datagram_limit(self):
        """The largest DATAGRAM frame that the broker takes, None if it takes none (RFC 9221 §3)."""
        return self._quic._remote_max_datagram_frame_size

    async def until(self, condition, what, patience=PATIENCE):
        late = f"connection: {what} not within {patience} s"
        await until(self.changed, condition, patience, lambda: f"{late}; closed={self.closed}")

    async def ready(self):
        """Waits for the end of the handshake."""
        await self.until(lambda: self.handshake or self.closed, "the end of the handshake")
        assert not self.closed, f"refused: {self.closed}"

    async def delivered(self):
        """Waits until the broker's QUIC has acknowledged what was sent so far."""
        await asyncio.wait_for(self.ping(), PATIENCE)

    async def end(self, patience=PATIENCE):
        """Waits until the broker closes the connection, and says with what code."""
        await self.until(lambda: self.closed, "the end of the connection", patience)
        return self.closed[0]

    async def accept(self, patience=PATIENCE):
        """The next stream that the broker opens."""
        return await asyncio.wait_for(self.from_server.get(), patience)

    def quic_event_received(self, event):
        if isinstance(event, events.HandshakeCompleted):
            self.handshake = event
        elif isinstance(event, events.ConnectionTerminated):
            self.closed = (event.error_code, event.reason_phrase)
        elif isinstance(event, events.DatagramFrameReceived):
            self.datagrams.put_nowait(event.data)
        elif isinstance(event, (events.StreamDataReceived, events.StreamReset, events.StopSendingReceived)):
            stream = self.streams.get(event.stream_id)
            if stream is None:
                stream = self.streams[event.stream_id] = Stream(self, event.stream_id)
                self.from_server.put_nowait(stream)
            if isinstance(event, events.StreamDataReceived):
                stream.raw += event.data
                stream.fin |= event.end_stream
            elif isinstance(event, events.StreamReset):
                stream.reset_by_peer = event.error_code
            else:
                stream.stopped_by_peer = event.error_code
        self.changed.set()
        for stream in self.streams.values():
            stream.changed.set()


class Connecting:
    """`async with Connecting(url, ca, alpn) as peer`: the connection is closed at the end.

    Nothing is sent before the caller's first `await peer.begin()`, so that with a `ticket` what was written
    before it leaves as early data (0-RTT).
    """

    def __init__(self, url, ca, alpn, ticket=None, tickets=None, datagrams=False):
        self.at = urlsplit(url)
        self.configuration = QuicConfiguration(
            alpn_protocols=[alpn], is_client=True, server_name="localhost", idle_timeout=30, cafile=ca
        )
        self.configuration.session_ticket = copy.copy(ticket)
        if datagrams:
            self.configuration.max_datagram_frame_size = 65535
        self.keep = (lambda one: tickets.append(one)) if tickets is not None else None

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.at.hostname, self.at.port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        self.quic = QuicConnection(configuration=self.configuration, session_ticket_handler=self.keep)
        mine = ("::", 0) if family == socket.AF_INET6 else ("0.0.0.0", 0)
        self.transport, peer = await loop.create_datagram_endpoint(
            lambda: Peer(self.quic), local_addr=mine, family=family
        )
        peer.connect(address, transmit=False)
        self.peer = peer
        return peer

    async def __aexit__(self, *_):
        self.peer.close()
        self.transport.close()
