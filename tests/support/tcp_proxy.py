"""A TCP proxy: `tcp_proxy.py PORT HOST PORT`. In a process of its own, so that SIGSTOP hangs nothing but the way.

SIGUSR1 breaks every connection there is; new ones are taken.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

_open: set[asyncio.StreamWriter] = set()


def _break() -> None:
    for writer in _open:
        writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    _open.add(sink)
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    _open.discard(sink)
    with suppress(OSError):
        sink.close()


async def main(port: int, host: str, target: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(host, target)
        await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _break)
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
