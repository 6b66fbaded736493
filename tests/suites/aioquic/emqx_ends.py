"""EMQX's form: how data streams end, by FIN, by reset, by an error, and what becomes of their state."""

import asyncio

import mqtt
from cases import case, lives, only
from quic import PATIENCE, Ended

HUNDREDS = 400


def is_an_error(name, data):
    async def run(world):
        watcher = await world.watcher(world.topic())
        peer, control = await world.session()
        other, wrong = peer.open(), peer.open()
        await other.publish(world.topic(), b"before", 1, 1)
        async with lives(world, peer, control):
            wrong.send(data)
            await wrong.gone()
        # A stream that was there before goes on, and keeps its identifiers.
        await other.publish(world.topic(), b"after", 2, 1)
        await only(watcher, "before", "after")

    run.__name__ = f"{name}_ends_its_data_stream_alone"
    return case("emqx")(run)


for what, data in {
    "pingreq": mqtt.pingreq(),
    "connect": mqtt.connect("other"),
    "auth": mqtt.auth(),
    "disconnect": mqtt.disconnect(),
    "reserved_type": b"\x00\x00",
    "connack": b"\x20\x03\x00\x00\x00",
    "pingresp": b"\xd0\x00",
    "suback": b"\x90\x04\x00\x01\x00\x00",
    "long_length": b"\x30\xff\xff\xff\xff\x01",
    "qos_3": b"\x36" + mqtt.publish("a", b"x", 2, 1)[1:],
    "subscribe_flags": b"\x80" + mqtt.subscribe(1, "a")[1:],
    "subscribe_without_filter": mqtt.packet(mqtt.SUBSCRIBE, 2, b"\x00\x01\x00"),
    "identifier_0": mqtt.publish("a", b"x", 1, 0),
    "bad_utf_8": mqtt.packet(mqtt.PUBLISH, 0, b"\x00\x02\xc3\x28\x00"),
    "wildcard_topic": mqtt.publish("a/#", b"x"),
    "short_packet": mqtt.packet(mqtt.PUBLISH, 0, b"\x00\x09a"),
    "flow_header": b"\x11\x00\x00",
}.items():
    is_an_error(what, data)


@case("emqx")
async def malformed_data_before_connack_ends_its_stream_alone(world):
    peer = await world.peer()
    control, wrong, right = peer.open(), peer.open(), peer.open()
    wrong.send(b"\x00\x00")
    right.send(mqtt.publish(world.topic(), b"", 1, 1))
    control.send(world.connect_packet("client"))
    await control.expect(mqtt.CONNACK)
    await wrong.gone()
    await right.expect(mqtt.PUBACK, 1)
    await control.ping()


async def sendable(stream):
    """Waits until the broker's stream limit lets the stream's bytes out."""
    async with asyncio.timeout(PATIENCE):
        while stream.unsent():
            await asyncio.sleep(0.005)


def cut_by(name, cut):
    def at_qos(qos):
        async def run(world):
            watcher = await world.watcher(world.topic())
            peer, control = await world.session()
            whole = mqtt.publish(world.topic(), b"in part", qos, 1)
            for count in range(len(whole)):
                data = peer.open()
                if count:
                    data.send(whole[:count])
                    await sendable(data)
                    await peer.delivered()
                cut(data)
                await control.ping()
            async with lives(world, peer, control):
                pass
            await control.publish(world.topic(), b"whole", 1)
            await only(watcher, "whole")

        run.__name__ = f"{name}_within_a_qos_{qos}_publish"
        case("emqx")(run)

    for qos in (0, 1, 2):
        at_qos(qos)


cut_by("reset_stream", lambda data: data.reset())
cut_by("stop_sending", lambda data: data.stop())
cut_by("reset_and_stop", lambda data: (data.reset(), data.stop()))
cut_by("fin", lambda data: data.send(fin=True))


@case("emqx")
async def cut_streams_give_their_credit_back(world):
    """Streams that were reset, stopped, ended within a packet or wrong do not use up the stream limit."""
    peer, control = await world.session()
    whole = mqtt.publish(world.topic(), b"in part", 1, 1)
    first = peer.granted
    ends = [
        lambda data: data.reset(),
        lambda data: (data.stop(), data.reset()),
        lambda data: data.send(fin=True),
        lambda data: data.send(b"\x00" * len(whole)),
    ]
    for number in range(first + 20):
        data = peer.open()
        data.send(whole[: number % (len(whole) - 1) + 1])
        await sendable(data)
        ends[number % len(ends)](data)
        if ends[number % len(ends)] is ends[3]:
            await data.gone()
            data.reset()
    async with lives(world, peer, control):
        pass
    assert peer.granted > first, f"{peer.granted} streams are granted after {first + 20} have ended"


@case("emqx")
async def stopped_stream_is_reset(world):
    """STOP_SENDING is answered with RESET_STREAM (RFC 9000 §3.5), and the other direction ends with it."""
    peer, control = await world.session()
    data = peer.open()
    await data.publish(world.topic(), b"", 1, 1)
    async with lives(world, peer, control):
        data.stop(7)
        data.send(mqtt.publish(world.topic(), b"", 1, 2))
        await data.until(lambda: data.ended, "an end")


@case("emqx")
async def stream_a_publish(world):
    """Hundreds of streams of one QoS 0 PUBLISH and FIN: each arrives, and the broker ends each stream in turn."""
    watcher = await world.watcher(world.topic(), qos=0)
    peer, control = await world.session()
    first = peer.granted
    streams = []
    for number in range(HUNDREDS):
        streams.append(peer.open())
        streams[-1].send(mqtt.publish(world.topic(), f"{number}"), fin=True)
    got = sorted([int((await watcher.message()).payload) for _ in range(HUNDREDS)])
    assert got == list(range(HUNDREDS)), "a message was lost, or came twice"
    for stream in streams:
        await stream.until(lambda stream=stream: stream.fin, "FIN")
        assert stream.reset_by_peer is None, f"{stream}: reset with {stream.reset_by_peer}"
    await peer.until(lambda: peer.granted > first, "more stream credit")
    await control.ping()


@case("emqx")
async def fin_behind_publish_is_answered(world):
    """FIN ends one direction: the acknowledgement still comes, and the broker's FIN behind it."""
    watcher = await world.watcher(world.topic())
    peer, _ = await world.session()
    data = peer.open()
    data.send(mqtt.publish(world.topic(), b"last", 1, 1), fin=True)
    await data.expect(mqtt.PUBACK, 1)
    await data.until(lambda: data.fin, "FIN")
    await only(watcher, "last")


def moves_to_control(name, end):
    async def run(world):
        peer, control = await world.session()
        data = peer.open()
        await data.subscribe(world.topic(), qos=2)
        await control.publish(world.topic(), b"to the data stream", 1, 2)
        assert (await data.message()).payload == b"to the data stream"
        # The acknowledgement; lost with the stream, it would bring the message again.
        await peer.delivered()
        await control.ping()
        end(data)
        await peer.delivered()
        await control.ping()
        for qos in (0, 1, 2):
            writer = peer.open()
            await writer.publish(world.topic(), f"at {qos}", qos, 1)
            got = await control.message()
            assert (got.payload, got.qos) == (f"at {qos}".encode(), qos), got
        await control.unsubscribe(world.topic(), id=9)
        await control.publish(world.topic(), b"for nobody", 1, 3)
        await control.silent()

    run.__name__ = f"subscription_of_a_{name}_stream_moves_to_control"
    case("emqx")(run)


moves_to_control("reset", lambda data: (data.reset(), data.stop()))
moves_to_control("stopped", lambda data: data.stop())
moves_to_control("malformed", lambda data: data.send(b"\x00\x00"))


@case("emqx")
async def unacknowledged_message_of_a_reset_stream_comes_again(world):
    """A QoS 1 message on its way when its stream ended comes again: on the control stream, or after a reconnection."""
    peer, control = await world.session(expiry=60)
    data = peer.open()
    await data.subscribe(world.topic(), qos=1)
    await control.publish(world.topic(), b"held", 1, 2)
    got = await data.message(acknowledge=False)
    assert got.payload == b"held"
    data.stop()
    data.reset()
    try:
        again = await control.packet(patience=1)
    except AssertionError:
        peer.close()
        _, control = await world.session(expiry=60, clean=False)
        assert control.connack.session_present
        again = await control.packet()
    assert (again.kind, again.payload, again.qos) == (mqtt.PUBLISH, b"held", 1), again
    control.send(mqtt.acknowledge(mqtt.PUBACK, again.id))
    await control.silent()


@case("emqx")
async def data_stream_subscription_outlives_the_connection(world):
    peer, control = await world.session(expiry=60)
    data = peer.open()
    await data.subscribe(world.topic(), qos=1)
    control.send(fin=True)
    await peer.end()
    writer = await world.watcher(world.topic("other"), client="writer")
    await writer.publish(world.topic(), b"waited", 1, 5)
    _, control = await world.session(expiry=60, clean=False)
    assert control.connack.session_present
    assert (await control.message()).payload == b"waited"


@case("emqx")
async def end_of_control_ends_data_streams(world):
    peer, control = await world.session()
    data = peer.open()
    await data.publish(world.topic(), b"", 1)
    control.send(mqtt.disconnect(), fin=True)
    await peer.end()
    try:
        await data.packet()
        raise AssertionError("a packet came after the end of the connection")
    except Ended:
        pass


@case("emqx")
async def streams_beyond_the_limit_wait(world):
    """The limit is in MAX_STREAMS. Streams beyond it wait, the rest work, and an ended one lets the next out."""
    peer, control = await world.session()
    within = []
    # A broker may grant more while a client uses what it has; the control stream is one of the granted.
    while len(within) + 1 < peer.granted:
        assert len(within) < 4096, f"{peer.granted} bidirectional streams are granted, and no end of it"
        within.append(peer.open())
        await within[-1].publish(world.topic(), b"", 1, 1)
    limit = peer.granted
    assert within, f"{limit} bidirectional streams are granted"
    beyond = [peer.open() for _ in range(3)]
    for stream in beyond:
        stream.send(mqtt.publish(world.topic(), b"", 1, 1))
    await control.ping()
    for stream in within:
        await stream.publish(world.topic(), b"", 1, 1)
    assert peer.granted == limit and all(stream.unsent() for stream in beyond), f"{peer.granted} are granted"
    for stream in within:
        stream.send(fin=True)
    for stream in beyond:
        await stream.expect(mqtt.PUBACK, 1)
    assert peer.granted > limit


@case("emqx")
async def stream_over_the_limit_is_refused_by_quic(world):
    """A client that ignores MAX_STREAMS loses its connection to STREAM_LIMIT_ERROR (RFC 9000 §4.6)."""
    peer, _ = await world.session()
    limit = peer.granted
    peer._quic._remote_max_streams_bidi += 1
    for _ in range(limit):
        stream = peer.open()
    stream.send(mqtt.pingreq())
    assert await peer.end() == 0x04


@case("emqx")
async def broker_opens_no_streams(world):
    """Deliveries by the hundred to control and data streams bring no stream of the broker's."""
    peer, control = await world.session()
    await control.subscribe(world.topic("control"), qos=0)
    data = peer.open()
    await data.subscribe(world.topic("data"), qos=0)
    writer = peer.open()
    for number in range(100):
        writer.send(mqtt.publish(world.topic("control"), f"{number}") + mqtt.publish(world.topic("data"), f"{number}"))
    for stream in (control, data):
        got = [int((await stream.message()).payload) for _ in range(100)]
        assert got == list(range(100)), got
    assert peer.from_server.empty()
