// The TypeScript SDK's client at the MCP endpoint, from the first 401 on: it finds the authorization server, registers,
// has its user log in, lists and calls. Arguments: address, e-mail address, password, tool, its arguments as JSON.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { logIn } from "./oauth_user_agent.mjs";

const [base, email, password, tool, given] = process.argv.slice(2);
const callback = "http://127.0.0.1:7777/callback";
const kept = {};
const provider = {
  redirectUrl: callback,
  clientMetadata: { client_name: "Desktop", redirect_uris: [callback], token_endpoint_auth_method: "none" },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  redirectToAuthorization: (address) => (kept.address = address),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
};
const url = new URL(`${base}/v1/mcp`);
const connect = async () => {
  const transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
  const client = new Client({ name: "desktop", version: "1.0.0" });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    const back = await logIn(base, kept.address, email, password);
    await transport.finishAuth(back.searchParams.get("code"));
    return undefined;
  }
  return client;
};
const first = await connect();
const client = await connect();
const { tools } = await client.listTools();
const progress = [];
const options = { onprogress: (told) => progress.push(told.progress) };
const result = await client.callTool({ name: tool, arguments: JSON.parse(given) }, undefined, options);
await client.close();
console.log(JSON.stringify({
  first: first === undefined ? "log in" : "in", registered: Boolean(kept.client.client_id), scope: kept.tokens.scope,
  tools: tools.map((tool) => tool.name).sort(), text: result.content[0]?.text, progress,
}));
