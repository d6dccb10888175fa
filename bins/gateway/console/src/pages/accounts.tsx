// What the end users of a tenant have connected, of what an assistant offers them: accounts at apps, and MCP servers of their own.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, call, withQuery } from "../api.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Failure, When } from "../parts/basic.tsx";
import { may } from "../session.ts";
import { Scheme } from "./connect.tsx";

type Ask = (method: string, path: string, body?: unknown) => Promise<any>;

/// What is not offered is not there.
const orNone = (error: unknown): null => {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
};

const can = (method: string, what: string): boolean => may("tenant-integrations:write", `${method} /v1/tenant-${what}`);

function App({ app, ask, again }: { app: Record_; ask: Ask; again: () => Promise<unknown> }): JSX.Element {
  const [schemes, setSchemes] = useState<Record_[] | null>(null);
  return (
    <li>
      <small>{app.app}</small>
      <p><strong>{app.name}</strong> {app.description}</p>
      {app.accounts.map((account: Record_) => (
        <div class="row" key={account.id}>
          <Badge of={account.status} /> <span>{account.statusReason}</span> <When at={account.connectedAt} />
          {can("DELETE", "integrations/accounts/{accountId}") && <Act kind="quiet" confirm="Tools of this app no longer work for them." run={() => ask("DELETE", `/v1/tenant-integrations/accounts/${account.id}`).then(again)}>Disconnect</Act>}
        </div>
      ))}
      {can("POST", "integrations/{app}/connect") && !schemes && <Act kind="quiet" run={() => ask("GET", `/v1/tenant-integrations/${app.app}/auth`).then((got) => setSchemes(got.schemes))}>{app.accounts.length ? "Connect again" : "Connect"}</Act>}
      {schemes?.map((scheme) => (
        <Scheme key={scheme.mode} scheme={scheme} isTenant done={() => (setSchemes(null), void again())}
          connect={({ authScheme, accountFields }) => ask("POST", `/v1/tenant-integrations/${app.app}/connect`, { authScheme, accountFields })} />
      ))}
    </li>
  );
}

export function Accounts({ tenant }: { tenant: Record_ }): JSX.Element {
  const [assistant, setAssistant] = useState("");
  const [user, setUser] = useState("");
  const [address, setAddress] = useState("");
  const [shown, setShown] = useState<{ apps: Record_[] | null; mcp: Record_ | null } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const ask: Ask = (method, path, body) => call(method, withQuery(path, { assistantId: assistant, tenantId: tenant.tenantId, subtenantId: user || undefined }), { body });
  const load = async () => {
    const [apps, mcp] = await Promise.all([ask("GET", "/v1/tenant-integrations").catch(orNone), ask("GET", "/v1/tenant-mcp").catch(orNone)]);
    setShown({ apps, mcp });
  };
  const again = () => load().catch(setError);
  const bring = () => ask("POST", "/v1/tenant-mcp", { url: address }).then(() => (setAddress(""), again()));
  return (
    <>
      <div class="row">
        <label>Assistant <input value={assistant} onInput={(event) => setAssistant(event.currentTarget.value)} /></label>
        <label>User <input placeholder="the tenant itself" value={user} onInput={(event) => setUser(event.currentTarget.value)} /></label>
        <Act kind="main" disabled={!assistant} run={load}>Show accounts</Act>
      </div>
      <Failure error={error} />
      {shown && !shown.apps && !shown.mcp && <p>This assistant offers its users no apps and no MCP servers: set tenantIntegrationsConfig or tenantMcpConfig in its settings.</p>}
      {shown?.apps && <ul class="entries" aria-label="Apps">{shown.apps.map((app) => <App key={app.app} app={app} ask={ask} again={again} />)}</ul>}
      {shown?.mcp && (
        <>
          <p>{shown.mcp.limits.used} of {shown.mcp.limits.maxServers} MCP servers</p>
          <ul class="entries" aria-label="MCP servers">{shown.mcp.servers.map((server: Record_) => (
            <li key={server.id}>
              <small>{server.url}</small>
              <p><strong>{server.name}</strong> <Badge of={server.status} /> {server.statusReason} {server.tools.length} tools</p>
              {can("POST", "mcp/{id}/reconnect") && <Act kind="quiet" run={() => ask("POST", `/v1/tenant-mcp/${server.id}/reconnect`, {}).then(again)}>Connect again</Act>}
              {can("DELETE", "mcp/{id}") && <Act kind="quiet" confirm="Its tools no longer work for them." run={() => ask("DELETE", `/v1/tenant-mcp/${server.id}`).then(again)}>Remove</Act>}
            </li>
          ))}</ul>
          {can("POST", "mcp") && <div class="row"><input type="url" aria-label="Address of an MCP server" value={address} onInput={(event) => setAddress(event.currentTarget.value)} /><Act disabled={!address} run={bring}>Add MCP server</Act></div>}
        </>
      )}
    </>
  );
}
