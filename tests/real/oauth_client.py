"""Authlib logs in to the platform. Arguments: address, client id, client secret, e-mail address, password."""

import html
import json
import re
import sys
from urllib.parse import urlencode

import httpx
from authlib.integrations.httpx_client import OAuth2Client

base, client_id, secret, email, password = sys.argv[1:]
metadata = httpx.get(f"{base}/.well-known/oauth-authorization-server").json()
client = OAuth2Client(
    client_id,
    secret,
    redirect_uri="http://localhost:7777/callback",
    scope="models:read",
    code_challenge_method="S256",
    token_endpoint_auth_method="client_secret_basic",
    revocation_endpoint_auth_method="client_secret_basic",
)
verifier = "v" * 64
address, state = client.create_authorization_url(metadata["authorization_endpoint"], code_verifier=verifier)
page = httpx.get(address).text
fields = {
    re.search('name="([^"]*)"', tag)[1]: html.unescape(re.search('value="([^"]*)"', tag)[1])
    for tag in re.findall('<input type="hidden"[^>]*>', page)
}
fields |= {"email": email, "password": password, "decision": "allow"}
sent = httpx.post(
    metadata["authorization_endpoint"],
    content=urlencode(fields),
    headers={"content-type": "application/x-www-form-urlencoded"},
)
token = client.fetch_token(
    metadata["token_endpoint"], authorization_response=sent.headers["location"], state=state, code_verifier=verifier
)
models = client.get(f"{base}/v1/models")
refreshed = client.refresh_token(metadata["token_endpoint"], refresh_token=token["refresh_token"])
client.revoke_token(metadata["revocation_endpoint"], token=refreshed["refresh_token"])
print(json.dumps({"models": models.status_code, "scope": token["scope"], "after": httpx.get(
    f"{base}/v1/models", headers={"authorization": f"Bearer {refreshed['access_token']}"}).status_code}))
