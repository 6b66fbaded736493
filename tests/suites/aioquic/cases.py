"""What every form's cases share: the list of cases, and a broker to run them against."""

import os
from contextlib import AsyncExitStack, asynccontextmanager

import mqtt
from quic import Connecting

# One case, all that it waits for included, in seconds.
LIMIT = 60

FORMS = {"emqx": [], "next": [], "mqtt5": []}


def case(form):
    """Adds a function of one `World` to a form's cases. Its name is the behaviour that it shows."""

    def add(function):
        FORMS[form].append((function.__name__, function))
        return function

    return add


class World:
    """A broker, and names in it that no other case uses."""

    def __init__(self, url, ca, form, name):
        self.url, self.ca, self.form, self.name = url, ca, form, name
        self.alpn = "MQTT-next" if form == "next" else "mqtt"
        self.held = AsyncExitStack()
        self.peers = []

    def topic(self, tail=""):
        return f"suite/aioquic/{self.form}/{self.name}/{tail}".rstrip("/")

    def connect_packet(self, client, **options):
        user, password = os.environ.get("BROKER_USER"), os.environ.get("BROKER_PASSWORD")
        return mqtt.connect(f"{self.form}-{self.name}-{client}", user, password, **options)

    async def peer(self, **options):
        """A connection that has not sent anything. It is closed at the end of the case."""
        peer = await self.held.enter_async_context(Connecting(self.url, self.ca, self.alpn, **options))
        self.peers.append(peer)
        return peer

    async def session(self, client="client", header=b"", ticket=None, tickets=None, datagrams=False, **options):
        """A connected client: its connection, and its control stream with CONNACK in `connack`."""
        peer = await self.peer(ticket=ticket, tickets=tickets, datagrams=datagrams)
        control = peer.open()
        control.send(header, self.connect_packet(client, **options))
        control.connack = await control.expect(mqtt.CONNACK)
        await peer.ready()
        return peer, control

    async def watcher(self, *filters, qos=2, client="watcher", **options):
        """A client on a connection of its own that has subscribed; only its control stream is in use."""
        _, control = await self.session(client, **options)
        await control.subscribe(*filters, qos=qos)
        return control

    async def run(self, function):
        async with self.held:
            await function(self)


@asynccontextmanager
async def lives(world, peer, control):
    """What happens inside leaves the connection alone: the control stream and a new data stream go on."""
    yield
    assert not peer.closed, f"the connection was closed with {peer.closed}"
    await control.ping()
    other = peer.open()
    await other.publish(world.topic("lives"), b"", 1)
    other.send(fin=True)


async def only(watcher, *payloads, ordered=True):
    """The watcher gets exactly these messages, and nothing after them."""
    got = [(await watcher.message()).payload for _ in payloads]
    wanted = [each.encode() if isinstance(each, str) else each for each in payloads]
    if not ordered:
        got, wanted = sorted(got), sorted(wanted)
    assert got == wanted, f"{wanted} wanted, {got} came"
    await watcher.silent()
