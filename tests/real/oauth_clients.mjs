// Real OAuth clients log in to the platform: openid-client, and the one of the MCP SDK.
// Arguments: address, client id, e-mail address, password. Prints what each got as JSON.
import { auth } from "@modelcontextprotocol/sdk/client/auth.js";
import * as client from "openid-client";
import { logIn as logInAs } from "./oauth_user_agent.mjs";

const [base, clientId, email, password] = process.argv.slice(2);
const callback = "http://127.0.0.1:7777/callback";
const logIn = (address) => logInAs(base, address, email, password);

async function openidClient() {
  const options = { execute: [client.allowInsecureRequests], algorithm: "oauth2" };
  const config = await client.discovery(new URL(base), clientId, undefined, client.None(), options);
  const verifier = client.randomPKCECodeVerifier();
  const state = client.randomState();
  const address = client.buildAuthorizationUrl(config, {
    redirect_uri: callback,
    scope: "assistants:read models:read",
    code_challenge: await client.calculatePKCECodeChallenge(verifier),
    code_challenge_method: "S256",
    state,
  });
  const back = await logIn(address);
  const first = await client.authorizationCodeGrant(config, back, { pkceCodeVerifier: verifier, expectedState: state });
  const listed = await fetch(`${base}/v1/assistants`, { headers: { authorization: `Bearer ${first.access_token}` } });
  const second = await client.refreshTokenGrant(config, first.refresh_token);
  await client.tokenRevocation(config, second.refresh_token);
  const after = await fetch(`${base}/v1/assistants`, { headers: { authorization: `Bearer ${second.access_token}` } });
  return { scope: first.scope, listed: listed.status, rotated: second.refresh_token !== first.refresh_token, after: after.status };
}

async function mcp() {
  const kept = {};
  const provider = {
    redirectUrl: callback,
    clientMetadata: { redirect_uris: [callback], scope: "mcp-gateway:read" },
    clientInformation: () => ({ client_id: clientId }),
    tokens: () => kept.tokens,
    saveTokens: (tokens) => (kept.tokens = tokens),
    redirectToAuthorization: (address) => (kept.address = address),
    saveCodeVerifier: (verifier) => (kept.verifier = verifier),
    codeVerifier: () => kept.verifier,
  };
  const serverUrl = `${base}/v1/mcp`;
  const asked = await auth(provider, { serverUrl, scope: "mcp-gateway:read" });
  const back = await logIn(kept.address);
  const given = await auth(provider, { serverUrl, authorizationCode: back.searchParams.get("code") });
  const claims = JSON.parse(Buffer.from(kept.tokens.access_token.split(".")[1], "base64url"));
  const first = kept.tokens.refresh_token;
  const again = await auth(provider, { serverUrl });
  return { asked, given, again, audience: claims.aud, scope: kept.tokens.scope, rotated: kept.tokens.refresh_token !== first };
}

console.log(JSON.stringify({ openidClient: await openidClient(), mcp: await mcp() }));
