"""EMQX's form: bidirectional data streams of plain packets beside the control stream (ALPN `mqtt`)."""

import asyncio

import mqtt
from cases import case, lives, only


@case("emqx")
async def control_stream_does_everything(world):
    peer, control = await world.session()
    for qos in (0, 1, 2):
        await control.subscribe(world.topic(f"{qos}"), qos=qos, id=10 + qos)
    for qos in (0, 1, 2):
        sent = f"at {qos}"
        control.send(mqtt.publish(world.topic(f"{qos}"), sent, qos, 5))
        await settle(control, qos, 5, sent.encode())
    await control.ping()
    await control.unsubscribe(world.topic("1"), id=20)
    await control.publish(world.topic("1"), b"for nobody", 1, 6)
    await control.silent()
    control.send(mqtt.disconnect())
    await peer.end()


async def settle(stream, qos, id, payload):
    """A client's own message at `qos`, and its acknowledgements, come on one stream in whatever order."""
    wanted = {0: {"PUBLISH"}, 1: {"PUBLISH", "PUBACK"}, 2: {"PUBLISH", "PUBREC", "PUBCOMP", "PUBREL"}}[qos]
    seen = set()
    while seen != wanted:
        got = await stream.packet()
        name = mqtt.NAMES[got.kind]
        assert name in wanted - seen, f"{got} was not wanted; {seen} came before"
        seen.add(name)
        if got.kind == mqtt.PUBLISH:
            assert (got.payload, got.qos) == (payload, qos), got
            if qos:
                stream.send(mqtt.acknowledge(mqtt.PUBACK if qos == 1 else mqtt.PUBREC, got.id))
        elif got.kind == mqtt.PUBREC:
            assert got.id == id, got
            stream.send(mqtt.acknowledge(mqtt.PUBREL, id))
        elif got.kind == mqtt.PUBREL:
            stream.send(mqtt.acknowledge(mqtt.PUBCOMP, got.id))
        else:
            assert got.id == id and got.code in (0, 0x10), got


@case("emqx")
async def control_stream_takes_single_bytes(world):
    peer, control = await world.session()
    for byte in mqtt.subscribe(3, world.topic(), qos=1) + mqtt.publish(world.topic(), b"slow", 0) + mqtt.pingreq():
        control.send(bytes([byte]))
        await asyncio.sleep(0.001)
    assert (await control.expect(mqtt.SUBACK, 3, code=None)).codes == [1]
    kinds = {(await control.packet()).kind, (await control.packet()).kind}
    assert kinds == {mqtt.PUBLISH, mqtt.PINGRESP}, kinds


@case("emqx")
async def control_stream_fin_ends_connection(world):
    watcher = await world.watcher(world.topic("will"))
    peer, control = await world.session(will=(world.topic("will"), "gone"))
    control.send(fin=True)
    await peer.end()
    await only(watcher, "gone")


@case("emqx")
async def control_stream_reset_ends_connection(world):
    watcher = await world.watcher(world.topic("will"))
    peer, control = await world.session(will=(world.topic("will"), "gone"))
    control.reset()
    await peer.end()
    await only(watcher, "gone")


@case("emqx")
async def control_stream_malformed_ends_connection(world):
    peer, control = await world.session()
    control.send(bytes([0x30, 0xFF, 0xFF, 0xFF, 0xFF]))
    await peer.end()


@case("emqx")
async def early_connect(world):
    """CONNECT leaves as early data with a ticket of an earlier connection, and CONNACK answers it."""
    peer, control, _ = await early(world, ())
    await control.ping()
    await control.publish(world.topic(), b"", 1)


async def early(world, opened):
    """A connection with a ticket: CONNECT, and each of `opened` on a data stream of its own, before any answer."""
    tickets = []
    first, _ = await world.session("ticket", tickets=tickets)
    await first.until(lambda: tickets, "a session ticket")
    assert tickets[0].max_early_data_size, "the ticket does not allow early data"
    first.close()
    peer = await world.peer(ticket=tickets[0])
    control = peer.open()
    # What is written before `transmit` shares the first flight.
    peer._quic.send_stream_data(control.id, world.connect_packet("early"))
    others = []
    for data in opened:
        others.append(peer.open())
        peer._quic.send_stream_data(others[-1].id, data)
    peer.transmit()
    for stream in [control, *others]:
        assert peer._quic._streams[stream.id].sender.highest_offset, f"{stream}: nothing left as early data"
    assert not peer.handshake
    await control.expect(mqtt.CONNACK)
    await peer.ready()
    assert peer.handshake.early_data_accepted, "the broker refused the early data"
    return peer, control, others


@case("emqx")
async def early_publish_on_data_streams(world):
    watcher = await world.watcher(world.topic("+"), qos=1)
    sent = [mqtt.publish(world.topic("0"), b"zero", 0), mqtt.publish(world.topic("1"), b"one", 1, 1)]
    _, control, streams = await early(world, sent)
    await streams[1].expect(mqtt.PUBACK, 1)
    await only(watcher, "zero", "one", ordered=False)
    # The streams that early data opened go on after the handshake.
    await streams[0].publish(world.topic("2"), b"later", 2, 9)
    await only(watcher, "later")
    await control.silent()


@case("emqx")
async def early_subscribe_on_data_stream(world):
    _, control, [stream] = await early(world, [mqtt.subscribe(1, world.topic(), qos=1)])
    assert (await stream.expect(mqtt.SUBACK, 1, code=None)).codes == [1]
    await control.publish(world.topic(), b"to the data stream", 1)
    assert (await stream.message()).payload == b"to the data stream"
    await control.silent()


def publishes_at(qos):
    async def run(world):
        watcher = await world.watcher(world.topic())
        peer, control = await world.session()
        data = peer.open()
        for number in range(5):
            await data.publish(world.topic(), f"{number}", qos, number + 1)
        await only(watcher, *(f"{number}" for number in range(5)))
        # An answer comes on the stream of the PUBLISH, and on no other.
        await control.silent()
        await data.silent()
        await control.ping()

    run.__name__ = f"data_stream_publishes_at_qos_{qos}"
    return case("emqx")(run)


for level in (0, 1, 2):
    publishes_at(level)


@case("emqx")
async def data_stream_qos_2_arrives_once(world):
    watcher = await world.watcher(world.topic())
    peer, _ = await world.session()
    data = peer.open()
    data.send(mqtt.publish(world.topic(), b"once", 2, 7))
    await data.expect(mqtt.PUBREC, 7)
    data.send(mqtt.publish(world.topic(), b"once", 2, 7, dup=True))
    await data.expect(mqtt.PUBREC, 7)
    data.send(mqtt.acknowledge(mqtt.PUBREL, 7))
    await data.expect(mqtt.PUBCOMP, 7)
    await only(watcher, "once")


@case("emqx")
async def data_stream_subscribes(world):
    """SUBACK, messages and UNSUBACK of a subscription come on its stream; so do retained messages."""
    peer, control = await world.session()
    await control.publish(world.topic("kept"), b"retained", 0)
    control.send(mqtt.publish(world.topic("kept"), b"retained", 1, 2, retain=True))
    await control.expect(mqtt.PUBACK, 2)
    data = peer.open()
    await data.subscribe(world.topic("#"), qos=2, id=1)
    assert (await data.message()).payload == b"retained"
    for qos in (0, 1, 2):
        await control.publish(world.topic("live"), f"at {qos}", qos, 3)
        got = await data.message()
        assert (got.payload, got.qos) == (f"at {qos}".encode(), qos), got
    await control.silent()
    await data.unsubscribe(world.topic("#"), id=2)
    await control.publish(world.topic("live"), b"for nobody", 1, 4)
    await data.silent()
    await control.silent()
    control.send(mqtt.publish(world.topic("kept"), b"", 1, 5, retain=True))
    await control.expect(mqtt.PUBACK, 5)


@case("emqx")
async def subscriptions_keep_to_their_streams(world):
    peer, control = await world.session()
    await control.subscribe(world.topic("control"), qos=1)
    streams = [peer.open() for _ in range(3)]
    for number, stream in enumerate(streams):
        await stream.subscribe(world.topic(f"{number}"), qos=2)
    for number in (2, 0, 1):
        await control.publish(world.topic(f"{number}"), f"to {number}", 2, 1 + number)
    for number, stream in enumerate(streams):
        assert (await stream.message()).payload == f"to {number}".encode()
    # A message that another stream of the same connection published goes to the subscriber's stream.
    await streams[0].publish(world.topic("1"), b"across", 1, 2)
    assert (await streams[1].message()).payload == b"across"
    await streams[0].publish(world.topic("control"), b"to control", 1, 3)
    assert (await control.message()).payload == b"to control"
    for stream in [control, *streams]:
        await stream.silent(0.1)


@case("emqx")
async def identifiers_are_counted_by_stream(world):
    """The same identifier is in use on the control stream and on four data streams at once, at QoS 2."""
    watcher = await world.watcher(world.topic("+"))
    peer, control = await world.session()
    streams = [control, *(peer.open() for _ in range(4))]
    for number, stream in enumerate(streams):
        stream.send(mqtt.publish(world.topic(f"{number}"), f"{number}", 2, 1))
    for stream in streams:
        await stream.expect(mqtt.PUBREC, 1)
    await only(watcher, *(f"{number}" for number in range(5)), ordered=False)
    for stream in reversed(streams):
        stream.send(mqtt.acknowledge(mqtt.PUBREL, 1))
        await stream.expect(mqtt.PUBCOMP, 1)
    # Released on one stream alone, the identifier is still held on the others.
    for stream in streams:
        stream.send(mqtt.publish(world.topic("again"), b"again", 2, 2))
        await stream.expect(mqtt.PUBREC, 2)
    streams[1].send(mqtt.acknowledge(mqtt.PUBREL, 2))
    await streams[1].expect(mqtt.PUBCOMP, 2)
    await only(watcher, *["again"] * 5)
    streams[2].send(mqtt.publish(world.topic("again"), b"again", 2, 2, dup=True))
    await streams[2].expect(mqtt.PUBREC, 2)
    await watcher.silent()


@case("emqx")
async def data_behind_connect_waits_for_connack(world):
    """The data streams' first bytes share a flight with CONNECT; each is answered, after CONNACK."""
    watcher = await world.watcher(world.topic())
    peer = await world.peer()
    control = peer.open()
    control.send(world.connect_packet("client"))
    streams = [peer.open() for _ in range(4)]
    for number, stream in enumerate(streams):
        stream.send(mqtt.publish(world.topic(), f"{number}", 1, 1))
    await control.expect(mqtt.CONNACK)
    for stream in streams:
        await stream.expect(mqtt.PUBACK, 1)
    await only(watcher, "0", "1", "2", "3", ordered=False)


@case("emqx")
async def data_before_connect_waits(world):
    """Stream 4 brings a PUBLISH before stream 0 brings a byte: it waits for CONNECT, and is then acted on."""
    watcher = await world.watcher(world.topic())
    peer = await world.peer()
    control, data = peer.open(), peer.open()
    data.send(mqtt.publish(world.topic(), b"waited", 1, 1))
    await peer.ready()
    await data.silent()
    await watcher.silent()
    control.send(world.connect_packet("client"))
    await control.expect(mqtt.CONNACK)
    await data.expect(mqtt.PUBACK, 1)
    await only(watcher, "waited")


@case("emqx")
async def data_of_a_refused_client_has_no_effect(world):
    watcher = await world.watcher(world.topic())
    peer = await world.peer()
    control, data = peer.open(), peer.open()
    data.send(mqtt.publish(world.topic(), b"from a stranger", 1, 1))
    control.send(mqtt.connect(f"{world.name}-stranger", "nobody", "wrong"))
    await control.expect(mqtt.CONNACK, code=0x86)
    await peer.end()
    await watcher.silent()


@case("emqx")
async def half_a_packet_holds_up_its_stream_alone(world):
    watcher = await world.watcher(world.topic())
    peer, control = await world.session()
    slow, quick = peer.open(), peer.open()
    whole = mqtt.publish(world.topic(), b"slow", 1, 1)
    slow.send(whole[:-1])
    await peer.delivered()
    async with lives(world, peer, control):
        await quick.publish(world.topic(), b"quick", 1, 1)
    slow.send(whole[-1:])
    await slow.expect(mqtt.PUBACK, 1)
    await only(watcher, "quick", "slow")


@case("emqx")
async def large_messages_share_the_connection(world):
    """300 kB on each of four data streams at once: each arrives whole, and PINGREQ is answered beside them."""
    watcher = await world.watcher(world.topic("+"), qos=1)
    peer, control = await world.session()
    streams = [peer.open() for _ in range(4)]
    for number, stream in enumerate(streams):
        stream.send(mqtt.publish(world.topic(f"{number}"), bytes([number]) * 300_000, 1, 1))
    await control.ping()
    got = sorted([(await watcher.message()).payload for _ in streams])
    assert got == [bytes([number]) * 300_000 for number in range(4)], [len(each) for each in got]
    for stream in streams:
        await stream.expect(mqtt.PUBACK, 1)
