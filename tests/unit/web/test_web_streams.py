"""Open pages of one run: however many there are, the next one is served."""

import asyncio

from aiohttp import ClientSession, web

from everstep.web.live import MAX_LISTENERS, Live


def test_a_crowd_of_streams_keeps_no_page_out() -> None:
    async def main() -> None:
        async def look() -> dict[str, dict[str, object]]:
            return {}

        live, app = Live(look, "e1"), web.Application()
        app.router.add_get("/", live.stream)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            async with ClientSession() as client, asyncio.timeout(60.0):
                streams = [await client.get(url) for _ in range(MAX_LISTENERS + 5)]
                assert [each.status for each in streams] == [200] * len(streams)
                for each in streams:
                    assert (await each.content.readline()).startswith(b"id:")
                assert (await streams[0].content.read()).endswith(b"\n\n"), "the oldest ones have ended"
                for each in streams:
                    each.close()
        finally:
            live.close()
            await runner.cleanup()

    asyncio.run(main())
