"""mqtt5's form: unidirectional data streams from the client, with flow headers or without, and datagrams.

A unidirectional stream cannot carry an answer, so answers come on the control stream, and identifiers are counted
by connection. The broker delivers on the control stream or on streams that it opens, which begin with a flow header.
"""

import asyncio

import mqtt
from cases import case, only
from flow import (
    BAD_FLOW_ID, CONTROL, FLOW_REFUSED, SERVER_DATA, STREAM_TYPE, USER_DEFINED, Subscriber, data_header, subscriber,
    varint,
)


async def client(world, **options):
    peer, control = await world.session(**options)
    assert peer.granted_unidirectional, "the broker grants no unidirectional streams"
    return peer, Subscriber(peer, control)


def publishes(name, header):
    def at_qos(qos):
        async def run(world):
            watcher = await subscriber(world, world.topic())
            peer, me = await client(world)
            data = peer.open(unidirectional=True)
            data.send(header)
            for number in range(5):
                await me.publish_on(data, world.topic(), f"{number}", qos, number + 1)
            await only(watcher, *(f"{number}" for number in range(5)))
            await me.control.ping()

        run.__name__ = f"{name}_stream_publishes_at_qos_{qos}"
        case("mqtt5")(run)

    for qos in (0, 1, 2):
        at_qos(qos)


# mqtt5 counts its flows from 1, and sets no flag.
publishes("plain", b"")
publishes("flow", data_header(2))


def stream_a_publish(name, header):
    async def run(world):
        watcher = await subscriber(world, world.topic())
        peer, me = await client(world)
        first = peer.granted_unidirectional
        count = first + 50
        for number in range(1, count + 1):
            data = peer.open(unidirectional=True)
            data.send(header(number), mqtt.publish(world.topic(), f"{number}", number % 3, number), fin=True)
        acknowledged = 0
        for number in range(1, count + 1):
            if number % 3 == 1:
                await me.other(mqtt.PUBACK, number)
            elif number % 3 == 2:
                await me.other(mqtt.PUBREC, number)
                me.control.send(mqtt.acknowledge(mqtt.PUBREL, number))
                await me.other(mqtt.PUBCOMP, number)
            acknowledged += 1
        assert acknowledged == count
        got = sorted([int((await watcher.message()).payload) for _ in range(count)])
        assert got == list(range(1, count + 1)), "a message was lost, or came twice"
        await watcher.silent()
        assert peer.granted_unidirectional > first

    run.__name__ = f"{name}_stream_a_publish"
    case("mqtt5")(run)


stream_a_publish("plain", lambda number: b"")
stream_a_publish("flow", lambda number: data_header(2 * number))


def subscribes(name, header):
    async def run(world):
        peer, me = await client(world)
        data = peer.open(unidirectional=True)
        data.send(header, mqtt.subscribe(7, world.topic(), qos=2))
        _, got = await me.other(mqtt.SUBACK, 7)
        assert got.codes == [2], got
        for qos in (0, 1, 2):
            await me.publish_on(data, world.topic(), f"at {qos}", qos, 10 + qos, back=me.control)
            place, message = await me.placed_message()
            assert (message.payload, message.qos) == (f"at {qos}".encode(), qos), message
            if place is not me.control:
                kind, id, _, _ = me.headers[place.id]
                assert kind == SERVER_DATA and id & 1, f"{place} begins with flow type {kind:#x}, id {id}"
        data.send(mqtt.unsubscribe(8, world.topic()))
        await me.other(mqtt.UNSUBACK, 8)
        await me.publish_on(data, world.topic(), b"for nobody", 1, 20)
        await me.silent()

    run.__name__ = f"{name}_stream_subscribes"
    case("mqtt5")(run)


subscribes("plain", b"")
subscribes("flow", data_header(2))


@case("mqtt5")
async def flow_headers_of_mqttv5(world):
    """What mqttv5 does with --quic-flow-headers: ALPN `MQTT-next`, a control stream without a header, flows from id 2."""
    watcher = await subscriber(world, world.topic("out"))
    world.alpn = "MQTT-next"
    peer, me = await client(world)
    kept, once = peer.open(unidirectional=True), peer.open(unidirectional=True)
    kept.send(data_header(2), mqtt.subscribe(1, world.topic("in"), qos=1))
    await me.other(mqtt.SUBACK, 1)
    once.send(data_header(4), mqtt.publish(world.topic("out"), b"one", 1, 2), fin=True)
    await me.other(mqtt.PUBACK, 2)
    await me.publish_on(kept, world.topic("out"), b"two", 2, 3)
    await only(watcher, "one", "two")
    await me.publish_on(me.control, world.topic("in"), b"three", 1, 4)
    assert (await me.message()).payload == b"three"
    await me.silent()


@case("mqtt5")
async def data_behind_connect_waits_for_connack(world):
    watcher = await subscriber(world, world.topic())
    peer = await world.peer()
    control = peer.open()
    control.send(world.connect_packet("client"))
    data = peer.open(unidirectional=True)
    data.send(mqtt.publish(world.topic(), b"waited", 1, 1))
    await control.expect(mqtt.CONNACK)
    await Subscriber(peer, control).other(mqtt.PUBACK, 1)
    await only(watcher, "waited")


def reset_within_publish(name, header):
    async def run(world):
        watcher = await subscriber(world, world.topic())
        peer, me = await client(world)
        for id, end in ((1, lambda data: data.reset()), (2, lambda data: data.send(fin=True))):
            whole = header + mqtt.publish(world.topic(), b"in part", 1, id)
            for count in range(1, len(whole)):
                data = peer.open(unidirectional=True)
                data.send(whole[:count])
                await peer.delivered()
                end(data)
                await me.control.ping()
        last = peer.open(unidirectional=True)
        last.send(header)
        await me.publish_on(last, world.topic(), b"whole", 1, 3)
        await only(watcher, "whole")

    run.__name__ = f"{name}_stream_reset_or_ended_within_a_publish"
    case("mqtt5")(run)


reset_within_publish("plain", b"")
reset_within_publish("flow", data_header(2))


def wrong_header(name, header, codes):
    async def run(world):
        peer, me = await client(world)
        data = peer.open(unidirectional=True)
        data.send(header, mqtt.publish(world.topic(), b"", 1, 1))
        await data.gone()
        assert data.codes <= codes, f"{codes} wanted, {data.codes} came"
        other = peer.open(unidirectional=True)
        await me.publish_on(other, world.topic(), b"", 1, 2)
        await me.control.ping()

    run.__name__ = f"{name}_is_refused"
    case("mqtt5")(run)


wrong_header("control_flow_on_a_data_stream", varint(CONTROL) + b"\0\0", {STREAM_TYPE, BAD_FLOW_ID})
wrong_header("server_flow_of_a_client", data_header(3, kind=SERVER_DATA), {STREAM_TYPE, BAD_FLOW_ID})
wrong_header("client_flow_with_a_server_id", data_header(3), {BAD_FLOW_ID})
wrong_header("user_defined_flow", varint(USER_DEFINED) + varint(2), {FLOW_REFUSED})


@case("mqtt5")
async def discard_of_a_flow_is_answered_with_fin(world):
    """A bidirectional stream of a header with `clean` alone and FIN: the broker drops the flow and sends FIN back."""
    peer, me = await client(world)
    data = peer.open(unidirectional=True)
    data.send(data_header(2), mqtt.subscribe(7, world.topic(), qos=1))
    await me.other(mqtt.SUBACK, 7)
    discard = peer.open()
    # mqtt5's order of the flags: the first is the lowest bit.
    discard.send(varint(0x12) + varint(2) + varint(0) + b"\x01", fin=True)
    await discard.until(lambda: discard.ended, "FIN")
    assert discard.fin and not discard.raw, discard.state()
    await me.control.publish(world.topic(), b"for nobody", 1, 9)
    await me.silent()


@case("mqtt5")
async def datagrams_bring_qos_0_messages(world):
    """Datagrams may be lost, so most of them have to arrive, each once."""
    watcher = await subscriber(world, world.topic(), qos=0)
    peer, me = await client(world, datagrams=True)
    assert peer.datagram_limit, "the broker takes no datagrams"
    for number in range(40):
        peer.datagram(mqtt.publish(world.topic(), f"{number}"))
        await asyncio.sleep(0.002)
    await me.control.publish(world.topic(), b"last", 1, 1)
    got = []
    while b"last" not in got or len(got) < 41:
        try:
            got.append((await watcher.placed_message(patience=0.5))[1].payload)
        except AssertionError:
            break
    assert len(got) == len(set(got)) and len(got) > 20 and b"last" in got, got


@case("mqtt5")
async def empty_and_zero_datagrams_are_ignored(world):
    watcher = await subscriber(world, world.topic(), qos=0)
    peer, me = await client(world, datagrams=True)
    assert peer.datagram_limit, "the broker takes no datagrams"
    for data in (b"", b"\0", b"\0" * 100, b"\0" + mqtt.publish(world.topic(), b"not MQTT")):
        peer.datagram(data)
    await peer.delivered()
    await me.control.ping()
    await watcher.silent()
