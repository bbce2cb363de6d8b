"""A WebSocket server, and a client that checks what comes back from it through a gateway.

    websocket.py serve                     says where it listens
    websocket.py call URL ADDRESS [ROOT]   every kind of frame
    websocket.py silent URL ADDRESS WAIT   is silent so long, and then speaks
    websocket.py listen URL ADDRESS WAIT   only listens so long to one who speaks
    websocket.py stay URL ADDRESS          stays until it is closed, and says how
"""

import asyncio
import json
import os
import ssl
import sys
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed


async def handle(socket):
    async for message in socket:
        if message == "close":
            await socket.close(4321, "as you wish")
        elif isinstance(message, str) and message.startswith("tick "):
            for _ in range(int(message.split()[1])):
                await asyncio.sleep(0.05)
                await socket.send("tick")
        else:
            await socket.send(message)


async def run_server():
    options = dict(subprotocols=["chat.v2"], max_size=None, ping_interval=None)
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]
        line = {"message": "listening", "listener": "ws", "address": f"127.0.0.1:{port}"}
        print(json.dumps(line), file=sys.stderr, flush=True)
        await server.serve_forever()


def open_socket(url, address, root=None):
    """Connects to an address whatever the URL's host."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=root) if root else None
    options = dict(subprotocols=["chat.v1", "chat.v2"], max_size=None, ping_interval=None)
    if context:
        options.update(ssl=context, server_hostname=urlsplit(url).hostname)
    return connect(url, host=host, port=int(port), proxy=None, **options)


async def call(url, address, root=None):
    async with open_socket(url, address, root) as socket:
        assert socket.subprotocol == "chat.v2", socket.subprotocol
        for message in ["hello", "\u00fc" * 70_000, b"\0\xff", os.urandom(3 << 20), ""]:
            await socket.send(message)
            assert await socket.recv() == message
        pong = await socket.ping(b"are you there")
        await asyncio.wait_for(pong, 10)
        # In pieces, and many without waiting for an answer.
        await socket.send(["in ", "pieces"])
        assert await socket.recv() == "in pieces"
        for number in range(500):
            await socket.send(str(number))
        assert [await socket.recv() for _ in range(500)] == [str(n) for n in range(500)]
        await socket.send("close")
        try:
            await socket.recv()
            assert False, "it is still open"
        except ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4321, "as you wish"), closed
    print("ok")


async def silent(url, address, wait):
    async with open_socket(url, address) as socket:
        await socket.send("before")
        assert await socket.recv() == "before"
        await asyncio.sleep(float(wait))
        await socket.send("after")
        assert await socket.recv() == "after"
    print("ok")


async def listen(url, address, wait):
    async with open_socket(url, address) as socket:
        count = int(float(wait) / 0.05)
        await socket.send(f"tick {count}")
        for _ in range(count):
            assert await socket.recv() == "tick"
    print("ok")


async def stay(url, address):
    async with open_socket(url, address) as socket:
        await socket.send("before")
        assert await socket.recv() == "before"
        print(json.dumps({"message": "open"}), flush=True)
        try:
            await socket.recv()
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
            print(json.dumps({"message": "closed", "code": code}), flush=True)


what, *arguments = sys.argv[1:]
does = {"serve": run_server, "call": call, "silent": silent, "listen": listen, "stay": stay}
asyncio.run(does[what](*arguments))
