"""An MCP server of the official Python SDK, over streamable HTTP: its newest protocol, without sessions."""

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("real")
generation = sys.argv[2] if len(sys.argv) > 2 else "first"


@server.tool(description=f"Adds two numbers ({generation})")
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def fail() -> str:
    raise ValueError("this tool fails on purpose")


server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
