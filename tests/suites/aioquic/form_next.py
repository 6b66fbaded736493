"""MQTT-next: flow headers, and flows whose state belongs to the session (ALPN `MQTT-next`).

Where the draft leaves an answer open, a case takes each that the draft allows, and its text says which.
"""

import asyncio

import flow
import mqtt
from cases import case, only
from flow import (
    BAD_FLOW_ID, DISCARD_STATE, FLOW_REFUSED, INCOMPLETE_PACKET, NO_FLOW_STATE, NOT_FLOW_OWNER,
    OPTIONAL_HEADER, PERSISTENT_SUB, PROTOCOL_L0, SERVER_DATA, STREAM_TYPE, TOO_MANY_RECOVER_ATTEMPTS, USER_DEFINED,
    Subscriber, control_header, data_header, varint,
)

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


# Recovery.


@case("next")
async def subscription_is_recovered_on_a_new_stream(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await broken_off(peer, control, first)
    await control.publish(world.topic(), b"between", 1, 3)
    second = begin(peer, 4, abort_if_no_state=1, **KEPT)
    assert (await second.message()).payload == b"between"
    await control.publish(world.topic(), b"after", 1, 4)
    assert (await second.message()).payload == b"after"
    await second.silent()
    await control.silent()


@case("next")
async def subscription_is_recovered_on_a_new_connection(world):
    peer, control, _ = await client(world, expiry=60)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    peer.close()
    _, out, _ = await client(world, "writer")
    await out.publish(world.topic(), b"between", 1, 3)
    peer, control, _ = await client(world, expiry=60, clean=False)
    assert control.connack.session_present
    second = begin(peer, 4, abort_if_no_state=1, **KEPT)
    assert (await second.message()).payload == b"between"
    await out.publish(world.topic(), b"after", 1, 4)
    assert (await second.message()).payload == b"after"


def qos_2_is_recovered(where):
    async def run(world):
        watcher = await watching(world, world.topic())
        peer, control, _ = await client(world, expiry=60)
        first = begin(peer, 6, **KEPT)
        first.send(mqtt.publish(world.topic(), b"once", 2, 1))
        await first.expect(mqtt.PUBREC, 1)
        if where == "connection":
            peer.close()
            peer, control, _ = await client(world, expiry=60, clean=False)
            assert control.connack.session_present
        else:
            await broken_off(peer, control, first)
        second = begin(peer, 6, abort_if_no_state=1, **KEPT)
        second.send(mqtt.publish(world.topic(), b"once", 2, 1, dup=True))
        await second.expect(mqtt.PUBREC, 1)
        second.send(mqtt.acknowledge(mqtt.PUBREL, 1))
        await second.expect(mqtt.PUBCOMP, 1)
        await only(watcher, "once")

    run.__name__ = f"qos_2_is_recovered_on_a_new_{where}"
    case("next")(run)


qos_2_is_recovered("stream")
qos_2_is_recovered("connection")


@case("next")
async def unacknowledged_message_comes_again_on_the_recovered_flow(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await control.publish(world.topic(), b"held", 1, 3)
    held = await first.message(acknowledge=False)
    await broken_off(peer, control, first)
    second = begin(peer, 4, abort_if_no_state=1, **KEPT)
    again = await second.message()
    assert (again.payload, again.id) == (b"held", held.id) and again.flags & 8, f"{again} dup={again.flags >> 3}"
    await second.silent()


@case("next")
async def flow_without_state_is_refused(world):
    peer, control, _ = await client(world)
    await without_state(begin(peer, 8, abort_if_no_state=1))
    await goes_on(world, peer, control)


@case("next")
async def second_recovery_without_state_ends_connection(world):
    peer, control, _ = await client(world)
    await without_state(begin(peer, 8, abort_if_no_state=1))
    begin(peer, 8, abort_if_no_state=1)
    code = await peer.end()
    assert code in (TOO_MANY_RECOVER_ATTEMPTS, PROTOCOL_L0), f"{code:#x}"


@case("next")
async def flow_without_state_begins_anew(world):
    """Neither flag is set: the broker has nothing to recover, and takes the flow as new."""
    peer, _, _ = await client(world)
    data = begin(peer, 8)
    await data.publish(world.topic(), b"", 2, 1)


@case("next")
async def state_expires_with_its_interval(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, expire=1, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await broken_off(peer, control, first)
    await asyncio.sleep(2.5)
    await without_state(begin(peer, 4, expire=1, abort_if_no_state=1))
    await control.publish(world.topic(), b"for nobody", 1, 3)
    await control.silent()


@case("next")
async def state_of_interval_0_ends_with_its_stream(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, expire=0, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await broken_off(peer, control, first)
    await without_state(begin(peer, 4, expire=0, abort_if_no_state=1))


@case("next")
async def graceful_end_removes_state(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    first.send(fin=True)
    await first.until(lambda: first.fin, "FIN")
    await control.publish(world.topic(), b"for nobody", 1, 3)
    await control.silent()
    await without_state(begin(peer, 4, abort_if_no_state=1))


@case("next")
async def reset_with_discard_state_removes_state(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    first.reset(DISCARD_STATE)
    first.stop(DISCARD_STATE)
    await peer.delivered()
    await control.ping()
    await without_state(begin(peer, 4, abort_if_no_state=1))


@case("next")
async def clean_flow_drops_earlier_state(world):
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await broken_off(peer, control, first)
    second = begin(peer, 4, clean=1)
    await second.publish(world.topic(), b"for nobody", 1, 1)
    await second.silent()
    await control.silent()


@case("next")
async def clean_start_drops_all_flows(world):
    peer, _, _ = await client(world, expiry=60)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    peer.close()
    peer, _, _ = await client(world, expiry=60)
    await without_state(begin(peer, 4, abort_if_no_state=1))


@case("next")
async def newer_stream_takes_the_flow_over(world):
    """The older stream's partial packet has no effect, nor has what comes on it later."""
    watcher = await watching(world, world.topic("out"))
    peer, control, _ = await client(world)
    older = begin(peer, 4, **KEPT)
    await older.subscribe(world.topic("in"), qos=1)
    whole = mqtt.publish(world.topic("out"), b"in part", 1, 5)
    older.send(whole[:-3])
    await peer.delivered()
    newer = begin(peer, 4, **KEPT)
    await newer.publish(world.topic("out"), b"newer", 1, 6)
    await older.until(lambda: older.ended, "an end")
    if older.stopped_by_peer is None:
        try:
            older.send(whole[-3:], mqtt.publish(world.topic("out"), b"late", 0))
        except (ValueError, RuntimeError):
            # aioquic has reset the stream by then.
            pass
    await control.publish(world.topic("in"), b"to the newer", 1, 7)
    assert (await newer.message()).payload == b"to the newer"
    await only(watcher, "newer")
    await goes_on(world, peer, control)


def cut_within_publish(qos):
    async def run(world):
        watcher = await watching(world, world.topic())
        peer, control, _ = await client(world)
        whole = data_header(4, **KEPT) + mqtt.publish(world.topic(), b"in part", qos, 1)
        for count in range(1, len(whole)):
            data = peer.open()
            data.send(whole[:count])
            await peer.delivered()
            await broken_off(peer, control, data)
        last = begin(peer, 4, **KEPT)
        await last.publish(world.topic(), b"whole", 1, 9)
        await only(watcher, "whole")

    run.__name__ = f"reset_within_header_or_qos_{qos}_publish"
    case("next")(run)


for level in (0, 1, 2):
    cut_within_publish(level)


# Errors.


def wrong_opening(name, header, codes, unidirectional=False):
    async def run(world):
        peer, control, _ = await client(world)
        data = peer.open(unidirectional)
        data.send(header())
        await data.gone()
        assert data.codes <= codes, f"one of {[hex(code) for code in codes]} wanted, {[hex(c) for c in data.codes]} came"
        await goes_on(world, peer, control)

    run.__name__ = name
    case("next")(run)


wrong_opening("server_flow_of_a_client_is_refused", lambda: data_header(3, kind=SERVER_DATA),
              {STREAM_TYPE, NOT_FLOW_OWNER, BAD_FLOW_ID})
wrong_opening("server_flow_with_a_client_id_is_refused", lambda: data_header(2, kind=SERVER_DATA),
              {STREAM_TYPE, NOT_FLOW_OWNER, BAD_FLOW_ID})
wrong_opening("client_flow_with_a_server_id_is_refused", lambda: data_header(3), {NOT_FLOW_OWNER, BAD_FLOW_ID})
wrong_opening("data_flow_with_id_0_is_refused", lambda: data_header(0), {BAD_FLOW_ID})
wrong_opening("second_control_flow_is_refused", control_header, {STREAM_TYPE, BAD_FLOW_ID})
wrong_opening("control_flow_with_an_id_is_refused", lambda: varint(0x11) + varint(2) + flow.flags(),
              {STREAM_TYPE, BAD_FLOW_ID})
wrong_opening("unknown_flow_type_is_refused", lambda: varint(0x15) + varint(2) + varint(0) + flow.flags(),
              {STREAM_TYPE, FLOW_REFUSED})
wrong_opening("plain_packet_instead_of_a_header_is_refused", lambda: mqtt.publish("a", b"x"), {STREAM_TYPE})
# A reserved type is there so that nobody relies on its absence: it may be read and dropped, too, but the draft does
# not say so.
wrong_opening("reserved_flow_type_is_refused", lambda: varint(0x1F * 7 + 0x21) + varint(2), {STREAM_TYPE, FLOW_REFUSED})
wrong_opening("user_defined_flow_is_refused", lambda: varint(USER_DEFINED) + varint(2) + b"anything",
              {FLOW_REFUSED, STREAM_TYPE})
wrong_opening("unidirectional_user_defined_flow_is_refused", lambda: varint(USER_DEFINED) + varint(2) + b"anything",
              {FLOW_REFUSED, STREAM_TYPE}, unidirectional=True)
wrong_opening("clean_with_abort_if_no_state_is_refused", lambda: data_header(2, clean=1, abort_if_no_state=1),
              {DISCARD_STATE, BAD_FLOW_ID, STREAM_TYPE, PERSISTENT_SUB})
wrong_opening("optional_headers_are_refused", lambda: data_header(2, optional_headers=1) + b"\x02ab",
              {OPTIONAL_HEADER})


@case("next")
async def clean_with_abort_if_no_state_discards_the_flow(world):
    """A protocol error of level 1 discards the flow's state, and the connection goes on."""
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    await broken_off(peer, control, first)
    wrong = begin(peer, 4, clean=1, abort_if_no_state=1)
    await wrong.gone()
    await without_state(begin(peer, 4, abort_if_no_state=1))
    await goes_on(world, peer, control)


def forbidden(name, data):
    async def run(world):
        peer, control, _ = await client(world)
        stream = begin(peer, 2)
        stream.send(data)
        await stream.gone()
        await goes_on(world, peer, control)

    run.__name__ = f"{name}_ends_its_data_flow_alone"
    case("next")(run)


for what, data in {
    "connect": mqtt.connect("other"),
    "connack": b"\x20\x03\x00\x00\x00",
    "disconnect": mqtt.disconnect(),
    "auth": mqtt.auth(),
    "reserved_packet": b"\x00\x00",
    "long_length": b"\x30\xff\xff\xff\xff\x01",
}.items():
    forbidden(what, data)


def incomplete(name, data):
    async def run(world):
        peer, control, _ = await client(world)
        stream = peer.open()
        stream.send(data(world), fin=True)
        await stream.until(lambda: stream.ended, "an end")
        assert stream.codes <= {INCOMPLETE_PACKET}, stream.codes
        await goes_on(world, peer, control)

    run.__name__ = name
    case("next")(run)


incomplete("fin_within_a_header", lambda world: data_header(2)[:-1])
incomplete("fin_within_a_packet", lambda world: data_header(2) + mqtt.publish(world.topic(), b"in part", 1, 1)[:-1])


@case("next")
async def incomplete_packet_keeps_the_flows_state(world):
    """INCOMPLETE_PACKET is of level 2: the flow ends and keeps its state."""
    peer, control, _ = await client(world)
    first = begin(peer, 4, **KEPT)
    await first.subscribe(world.topic(), qos=1)
    first.send(mqtt.publish(world.topic(), b"in part", 1, 2)[:-1], fin=True)
    await first.until(lambda: first.ended, "an end")
    second = begin(peer, 4, abort_if_no_state=1, **KEPT)
    await control.publish(world.topic(), b"after", 1, 3)
    assert (await second.message()).payload == b"after"


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
