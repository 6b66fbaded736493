"""MQTT-next: flow headers, and flows whose state belongs to the session (ALPN `MQTT-next`).

Where the draft leaves an answer open, a case takes each that the draft allows, and its text says which.
"""

import asyncio

import flow
import mqtt
from cases import case, only
from flow import NO_FLOW_STATE, SERVER_DATA, Subscriber, control_header, data_header

KEPT = {"persistent_qos": 1, "persistent_subscriptions": 1}


async def client(world, name="client", **options):
    """A client: its connection, its control flow, and what reads from both and from the broker's flows."""
    peer, control = await world.session(name, header=control_header(), **options)
    return peer, control, Subscriber(peer, control)


async def watching(world, *filters, qos=2):
    peer, control, watcher = await client(world, "watcher")
    await control.subscribe(*filters, qos=qos)
    return watcher


def begin(peer, id, expire=300, unidirectional=False, **given):
    """A stream that begins or takes over the client's data flow `id`."""
    stream = peer.open(unidirectional=unidirectional)
    stream.send(data_header(id, expire, **given))
    return stream


async def broken_off(peer, control, stream):
    """Ends the flow's stream abortively, and waits until the broker has seen it: its state is kept."""
    stream.reset()
    if not stream.unidirectional:
        stream.stop()
    await peer.delivered()
    await control.ping()


async def goes_on(world, peer, control, id=900):
    """The connection is as it was: the control flow answers, and a new data flow works."""
    assert not peer.closed, f"the connection was closed with {peer.closed}"
    await control.ping()
    other = begin(peer, id)
    await other.publish(world.topic("goes-on"), b"", 1)
    other.send(fin=True)


async def without_state(stream):
    """The broker refuses a recovery for want of state."""
    await stream.gone()
    assert stream.codes <= NO_FLOW_STATE, f"NO_FLOW_STATE wanted, {stream.codes} came"


@case("next")
async def control_flow_does_everything(world):
    peer, control, me = await client(world)
    for qos in (0, 1, 2):
        await control.subscribe(world.topic(f"{qos}"), qos=qos, id=10 + qos)
    writer, out, _ = await client(world, "writer")
    for qos in (0, 1, 2):
        await out.publish(world.topic(f"{qos}"), f"at {qos}", qos, 5)
        got = await me.message()
        assert (got.payload, got.qos) == (f"at {qos}".encode(), qos), got
    await control.unsubscribe(world.topic("1"), id=20)
    await out.publish(world.topic("1"), b"for nobody", 1, 6)
    await me.silent()
    await control.ping()
    control.send(mqtt.disconnect())
    await peer.end()


@case("next")
async def control_header_takes_single_bytes(world):
    peer = await world.peer()
    control = peer.open()
    for byte in control_header() + world.connect_packet("client"):
        control.send(bytes([byte]))
        await asyncio.sleep(0.001)
    await control.expect(mqtt.CONNACK)


@case("next")
async def long_varints_are_taken(world):
    """A number may take more bytes than it needs (RFC 9000 §16)."""
    watcher = await watching(world, world.topic())
    peer, _, _ = await client(world)
    data = peer.open()
    data.send(b"\x40\x12", b"\x80\x00\x00\x06", b"\xc0\x00\x00\x00\x00\x00\x01\x2c", flow.flags())
    await data.publish(world.topic(), b"long", 1, 1)
    await only(watcher, "long")


@case("next")
async def first_stream_without_header_ends_connection(world):
    peer = await world.peer()
    control = peer.open()
    control.send(mqtt.publish(world.topic(), b"x"))
    assert await peer.end() != 0


@case("next")
async def control_fin_ends_connection(world):
    peer, control, _ = await client(world)
    data = begin(peer, 2)
    await data.publish(world.topic(), b"", 1)
    control.send(fin=True)
    await peer.end()


def publishes_at(qos):
    async def run(world):
        watcher = await watching(world, world.topic())
        peer, control, _ = await client(world)
        data = begin(peer, 2)
        for number in range(5):
            await data.publish(world.topic(), f"{number}", qos, number + 1)
        await only(watcher, *(f"{number}" for number in range(5)))
        await data.ping()
        await control.silent()
        await data.silent()

    run.__name__ = f"bidirectional_flow_publishes_at_qos_{qos}"
    case("next")(run)

    async def run_one_way(world):
        watcher = await watching(world, world.topic())
        peer, control, me = await client(world)
        data = begin(peer, 2, unidirectional=True)
        for number in range(3):
            data.send(mqtt.publish(world.topic(), f"{number}", qos, number + 1))
        if qos:
            await answered_somewhere(peer, me, data, qos)
        if not data.ended:
            await only(watcher, "0", "1", "2")
        await goes_on(world, peer, control)

    run_one_way.__name__ = f"unidirectional_flow_publishes_at_qos_{qos}"
    case("next")(run_one_way)


async def answered_somewhere(peer, me, data, qos):
    """The draft does not say where a unidirectional flow is answered.

    It is on the control flow or a flow of the broker's, or the broker refuses the stream; it is not in silence.
    """
    for id in (1, 2, 3):
        answer = asyncio.ensure_future(me.other(mqtt.PUBACK if qos == 1 else mqtt.PUBREC, id))
        refused = asyncio.ensure_future(data.until(lambda: data.stopped_by_peer is not None, "STOP_SENDING"))
        done, waiting = await asyncio.wait({answer, refused}, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        if refused in done and not refused.exception():
            return
        place, _ = answer.result()
        if qos == 2:
            place.send(mqtt.acknowledge(mqtt.PUBREL, id))
            await me.other(mqtt.PUBCOMP, id)


for level in (0, 1, 2):
    publishes_at(level)


@case("next")
async def flow_subscribes(world):
    peer, control, _ = await client(world)
    data = begin(peer, 2)
    await data.subscribe(world.topic(), qos=2)
    for qos in (0, 1, 2):
        await control.publish(world.topic(), f"at {qos}", qos, 5)
        got = await data.message()
        assert (got.payload, got.qos) == (f"at {qos}".encode(), qos), got
    await data.unsubscribe(world.topic(), id=2)
    await control.publish(world.topic(), b"for nobody", 1, 6)
    await data.silent()
    await control.silent()


@case("next")
async def identifiers_are_counted_by_flow(world):
    watcher = await watching(world, world.topic("+"))
    peer, control, _ = await client(world)
    streams = [control, *(begin(peer, 2 * number) for number in range(1, 4))]
    for number, stream in enumerate(streams):
        stream.send(mqtt.publish(world.topic(f"{number}"), f"{number}", 2, 1))
    for stream in streams:
        await stream.expect(mqtt.PUBREC, 1)
    for stream in reversed(streams):
        stream.send(mqtt.acknowledge(mqtt.PUBREL, 1))
        await stream.expect(mqtt.PUBCOMP, 1)
    await only(watcher, "0", "1", "2", "3", ordered=False)


@case("next")
async def data_flow_before_connect_waits(world):
    watcher = await watching(world, world.topic())
    peer = await world.peer()
    control, data = peer.open(), peer.open()
    data.send(data_header(2), mqtt.publish(world.topic(), b"waited", 1, 1))
    await peer.ready()
    await watcher.silent()
    control.send(control_header(), world.connect_packet("client"))
    await control.expect(mqtt.CONNACK)
    await data.expect(mqtt.PUBACK, 1)
    await only(watcher, "waited")


# The broker's flows, and datagrams.


@case("next")
async def server_flows_have_right_headers(world):
    """Messages for a subscription of the control flow come there or on flows of the broker's, each once."""
    peer, control, me = await client(world)
    await control.subscribe(world.topic("#"), qos=2)
    _, out, _ = await client(world, "writer")
    for number in range(30):
        await out.publish(world.topic(f"{number % 3}"), f"{number}", number % 3, 1 + number)
    places = {}
    for _ in range(30):
        place, message = await me.placed_message()
        places.setdefault(message.topic, []).append((place, int(message.payload)))
    for topic, each in places.items():
        got = [number for _, number in each]
        assert sorted(got) == list(range(got[0] % 3, 30, 3)), f"{topic}: {got}"
    await me.silent()
    for id, header in me.headers.items():
        kind, flow_id, _, flags = header
        assert kind == SERVER_DATA and flow_id & 1, f"stream {id} begins with type {kind:#x}, flow {flow_id}"
        forbidden_flag = flow.flags(persistent_subscriptions=1)[0]
        assert not flags & forbidden_flag, f"stream {id}: persistent_subscriptions in a server flow"
    assert len({flow_id for _, flow_id, _, _ in me.headers.values()}) == len(me.headers), "a flow id came twice"


@case("next")
async def datagrams_bring_qos_0_messages(world):
    watcher = await watching(world, world.topic(), qos=0)
    peer, control, _ = await client(world, datagrams=True)
    assert peer.datagram_limit, "the broker takes no datagrams"
    for number in range(40):
        peer.datagram(mqtt.publish(world.topic(), f"{number}"))
        await asyncio.sleep(0.002)
    await peer.delivered()
    await control.publish(world.topic(), b"last", 1, 1)
    got = []
    while len(got) < 41:
        try:
            got.append((await watcher.placed_message(patience=0.5))[1].payload)
        except AssertionError:
            break
    assert len(got) == len(set(got)) and len(got) > 20 and b"last" in got, got


@case("next")
async def empty_and_zero_datagrams_are_ignored(world):
    watcher = await watching(world, world.topic(), qos=0)
    peer, control, _ = await client(world, datagrams=True)
    assert peer.datagram_limit, "the broker takes no datagrams"
    for data in (b"", b"\0", b"\0" * 100, b"\0" + mqtt.publish(world.topic(), b"not MQTT")):
        peer.datagram(data)
    await peer.delivered()
    await goes_on(world, peer, control)
    await watcher.silent()
