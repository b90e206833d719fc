"""What a Prometheus says of some services, said of all.

One that scrapes thousands of pods needs more than the machine of a bench has beside the operator. So it scrapes the
first services, and what it answers of them is said of all, by this process: the operator has as much to read as if all
were scraped.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

from flyball_lab.benches.tick.operator import uid_of
from flyball_operator.prometheus.queries import UID


def copied(answer: Mapping[str, Any], *, scraped: int, services: int) -> str:
    """The answer of a Prometheus that scrapes the first services, as JSON, of all services."""
    known: dict[str, list[str]] = {}
    for sample in answer["data"]["result"]:
        known.setdefault(sample["metric"][UID], []).append(json.dumps(sample, separators=(",", ":")))
    texts = [",".join(known.get(uid_of(service), ())) for service in range(scraped)]
    every = (
        texts[service % scraped].replace(uid_of(service % scraped), uid_of(service)) for service in range(services)
    )
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(filter(None, every))}]}}}}'


async def _serve(port: int, url: str, scraped: int, services: int) -> None:
    async with aiohttp.ClientSession() as session:

        async def query(request: web.Request) -> web.Response:
            async with session.get(f"{url}{request.path}", params=request.query) as response:
                if response.status != 200:
                    return web.Response(status=response.status, body=await response.read())
                text = copied(await response.json(), scraped=scraped, services=services)
            # As Prometheus does for those that accept it.
            body, headers = gzip.compress(text.encode(), 1), {"Content-Encoding": "gzip"}
            return web.Response(body=body, headers=headers, content_type="application/json")

        app = web.Application()
        app.router.add_get("/api/v1/query", query)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print("ready", flush=True)
        await asyncio.Event().wait()


def _main(port: str, url: str, *numbers: str) -> None:
    scraped, services = map(int, numbers)
    asyncio.run(_serve(int(port), url, scraped, services))


if __name__ == "__main__":
    _main(*sys.argv[1:])
