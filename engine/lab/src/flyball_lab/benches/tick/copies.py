"""What a Prometheus says of some services, said of all.

One that scrapes thousands of pods needs more than the machine of a bench has beside the operator. So it scrapes the
first services, and what it answers of them is said of all, by this process: the operator has as much to read as if all
were scraped. What differs between services, the number of the setpoint that each holds, the fleet tells.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import web

from flyball_lab.benches.tick.fleet import NUMBERS_PATH
from flyball_lab.benches.tick.operator import PODS, address_of, uid_of
from flyball_operator.prometheus.queries import FIELD, UID

#: Epoch and generation by address of a pod.
Numbers = Mapping[str, Sequence[int]]
#: Fields of the load that are sums of these.
_NUMBERS: Final = ("epoch", "generation")


def copied(answer: Mapping[str, Any], numbers: Numbers, *, scraped: int, services: int) -> str:
    """The answer of a Prometheus that scrapes the first services, as JSON, of all services."""
    known: dict[str, list[str]] = {}
    for sample in answer["data"]["result"]:
        if (field := sample["metric"].get(FIELD)) in _NUMBERS:
            sample["value"][1] = f"@{field}@"
        known.setdefault(sample["metric"][UID], []).append(json.dumps(sample, separators=(",", ":")))
    texts = [",".join(known.get(uid_of(service), ())) for service in range(scraped)]
    every = (
        _numbered(texts[service % scraped].replace(uid_of(service % scraped), uid_of(service)), service, numbers)
        for service in range(services)
    )
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(filter(None, every))}]}}}}'


def _numbered(text: str, service: int, numbers: Numbers) -> str:
    """With the numbers of the service's pods in their places."""
    if "@" not in text:
        return text
    held = [numbers.get(address_of(PODS * service + pod), (0, 0)) for pod in range(PODS)]
    for field, values in zip(_NUMBERS, zip(*held, strict=True), strict=True):
        text = text.replace(f"@{field}@", str(sum(values)))
    return text


async def _serve(port: int, url: str, fleet: str, scraped: int, services: int) -> None:
    async with aiohttp.ClientSession() as session:

        async def query(request: web.Request) -> web.Response:
            async with session.get(f"{url}{request.path}", params=request.query) as response:
                if response.status != 200:
                    return web.Response(status=response.status, body=await response.read())
                answer = await response.json()
            async with session.get(f"{fleet}{NUMBERS_PATH}") as told:
                text = copied(answer, await told.json(), scraped=scraped, services=services)
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


def _main(port: str, url: str, fleet: str, *numbers: str) -> None:
    scraped, services = map(int, numbers)
    asyncio.run(_serve(int(port), url, fleet, scraped, services))


if __name__ == "__main__":
    _main(*sys.argv[1:])
