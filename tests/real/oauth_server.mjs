// A certified OAuth server (oidc-provider) whose user agrees to everything, and a resource that takes its tokens.
// Arguments: port, where users are sent back to, seconds that their tokens live.
import http from "node:http";
import Provider from "oidc-provider";

const port = Number(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const client = {
  client_id: "tools",
  client_secret: "client-canary-of-the-real-server",
  grant_types: ["client_credentials", "refresh_token", "authorization_code"],
  redirect_uris: [process.argv[3] ?? "https://client.example/callback"],
  token_endpoint_auth_method: "client_secret_post",
};
const provider = new Provider(issuer, {
  clients: [client],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    // With `resource` a token is a JWT for it, which the platform takes as that of a trusted issuer.
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: () => ({
        scope: "assistants:read models:read",
        audience: "platform",
        accessTokenFormat: "jwt",
        accessTokenTTL: 600,
      }),
    },
  },
  rotateRefreshToken: true,
  ttl: { AccessToken: Number(process.argv[4] ?? 3600) },
  pkce: { required: () => true },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  scopes: ["openid", "offline_access", "read"],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
});
const callback = provider.callback();

/** A refresh token as the authorization of a user leaves it behind. */
async function refreshToken() {
  const grant = new provider.Grant({ accountId: "user", clientId: client.client_id });
  grant.addOIDCScope("openid offline_access");
  const grantId = await grant.save();
  const token = new provider.RefreshToken({
    accountId: "user",
    client: await provider.Client.find(client.client_id),
    grantId,
    gty: "authorization_code",
    scope: "openid offline_access",
    expiresIn: 3600,
  });
  return token.save();
}

/** The user logs in and agrees. */
async function agree(request, response) {
  const { params, prompt } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "user" } });
  }
  const grant = new provider.Grant({ accountId: "user", clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

let calls = 0;
http
  .createServer(async (request, response) => {
    const answer = (status, body) => {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(body));
    };
    if (request.url === "/refresh-token") return answer(200, { refreshToken: await refreshToken() });
    if (request.url.startsWith("/interaction/")) return agree(request, response);
    if (request.url !== "/resource") return callback(request, response);
    calls += 1;
    const value = (request.headers.authorization ?? "").replace("Bearer ", "");
    const token = (await provider.ClientCredentials.find(value)) ?? (await provider.AccessToken.find(value));
    if (!token || token.isExpired) return answer(401, { error: "invalid_token" });
    return answer(200, { client: token.clientId, kind: token.kind, token: value.slice(0, 8), calls });
  })
  .listen(port, "127.0.0.1", () => console.log("listening"));
