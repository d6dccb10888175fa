// An MCP server that speaks over its standard input and output, over HTTP at PORT. Arguments: its file and its arguments.
import http from "node:http";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const info = { name: "bridge", version: "1.0.0" };
const behind = new Client(info);
await behind.connect(new StdioClientTransport({ command: process.execPath, args: process.argv.slice(2) }));

http.createServer(async (request, response) => {
  const server = new Server(info, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, (asked) => behind.listTools(asked.params));
  server.setRequestHandler(CallToolRequestSchema, (asked) => behind.callTool(asked.params));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  response.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(request, response);
}).listen(Number(process.env.PORT), "127.0.0.1");
