"""The Python SDK's client at the MCP endpoint, in both protocol families.

Arguments: address, credential, tool, its arguments as JSON.
"""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def talk(mode: str, url: str, key: str, tool: str, given: str) -> dict:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            tools = await client.list_tools()
            result = await client.call_tool(tool, json.loads(given))
            return {
                "version": client.protocol_version,
                "tools": len(tools.tools),
                "text": result.content[0].text,
            }


async def main() -> None:
    print(json.dumps({mode: await talk(mode, *sys.argv[1:5]) for mode in ("legacy", "2026-07-28")}))


asyncio.run(main())
