"""MQTT-next: flows that are recovered, discarded, expired and taken over."""

import asyncio

import mqtt
from cases import case, only
from flow import DISCARD_STATE, PROTOCOL_L0, TOO_MANY_RECOVER_ATTEMPTS, data_header
from form_next import KEPT, begin, broken_off, client, goes_on, watching, without_state


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
