"""MQTT-next: wrong headers, forbidden and incomplete packets, and the codes with which the broker answers."""

import flow
import mqtt
from cases import case
from flow import (
    BAD_FLOW_ID, DISCARD_STATE, FLOW_REFUSED, INCOMPLETE_PACKET, NOT_FLOW_OWNER, OPTIONAL_HEADER, PERSISTENT_SUB,
    SERVER_DATA, STREAM_TYPE, USER_DEFINED, control_header, data_header, varint,
)
from form_next import KEPT, begin, broken_off, client, goes_on, without_state


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
