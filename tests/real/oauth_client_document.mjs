// The OAuth client of the MCP SDK, which is known by the document at its own address and is registered nowhere.
// Arguments: address, folder of its certificate, e-mail address, password. Prints what it got as JSON.
import fs from "node:fs";
import https from "node:https";
import { auth } from "@modelcontextprotocol/sdk/client/auth.js";
import { logIn } from "./oauth_user_agent.mjs";

const [base, folder, email, password] = process.argv.slice(2);
const callback = "http://127.0.0.1:7777/callback";
const tls = { cert: fs.readFileSync(`${folder}/cert.pem`), key: fs.readFileSync(`${folder}/key.pem`) };
let reads = 0;
const server = https.createServer(tls, (_, response) => {
  reads += 1;
  const document = { client_id: address, client_name: "Desk", redirect_uris: [callback], token_endpoint_auth_method: "none" };
  response.setHeader("content-type", "application/json").end(JSON.stringify(document));
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `https://127.0.0.1:${server.address().port}/client.json`;

const kept = {};
const provider = {
  redirectUrl: callback,
  clientMetadataUrl: address,
  clientMetadata: { redirect_uris: [callback] },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  redirectToAuthorization: (address) => (kept.address = address),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
};
const serverUrl = `${base}/v1/mcp`;
await auth(provider, { serverUrl });
const back = await logIn(base, kept.address, email, password);
const given = await auth(provider, { serverUrl, authorizationCode: back.searchParams.get("code") });
const again = await auth(provider, { serverUrl });
const headers = { authorization: `Bearer ${kept.tokens.access_token}`, "content-type": "application/json" };
const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/list" });
const listed = await fetch(serverUrl, { method: "POST", headers, body });
const elsewhere = await fetch(`${base}/v1/models`, { headers });
server.close();
console.log(
  JSON.stringify({
    isDocument: kept.client.client_id === address,
    given,
    again,
    reads,
    scope: kept.tokens.scope,
    listed: listed.status,
    elsewhere: elsewhere.status,
  }),
);
