// Connecting an app: the way in that it offers, with the fields that it asks for; what signs deliveries; what a caller of MCP sees.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, call, get, post, withQuery } from "../api.ts";
import { words } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Copy, Failure, useLoad } from "../parts/basic.tsx";
import { may } from "../session.ts";

/// `isTenant`: an end user connects, who has neither the app's own client to give nor a label.
export function Scheme(props: { scheme: Record_; connect: (body: Record_) => Promise<Record_>; done: () => void; isTenant?: boolean }): JSX.Element {
  const { scheme, done, isTenant } = props;
  const [typed, setTyped] = useState<Record<string, Record<string, string>>>(() => {
    const given = (part: string) => ((scheme[part] ?? []) as Record_[]).filter((field) => field.default !== undefined).map((field) => [field.name, String(field.default)]);
    return { appFields: Object.fromEntries(given("appFields")), accountFields: Object.fromEntries(given("accountFields")) };
  });
  const [label, setLabel] = useState("");
  const [address, setAddress] = useState<string | null>(null);
  const connect = async () => {
    const made = await props.connect({ authScheme: scheme.mode, label: label || undefined, ...typed });
    setAddress(made.authorizationUrl ?? null);
    if (!made.authorizationUrl) done();
  };
  const fields = (part: "appFields" | "accountFields") => (part === "appFields" && (scheme.managed || isTenant) ? [] : ((scheme[part] ?? []) as Record_[])).map((field) => (
    <div class="field" key={field.name}>
      <label htmlFor={`${scheme.mode}-${part}-${field.name}`}>{field.label ?? words(field.name)}{field.required && " *"}</label>
      <input id={`${scheme.mode}-${part}-${field.name}`} {...(field.secret && { type: "password" as const })} autocomplete="off" value={typed[part]![field.name] ?? ""} onInput={(event) => setTyped({ ...typed, [part]: { ...typed[part], [field.name]: event.currentTarget.value } })} />
      <small>{field.description}</small>
    </div>
  ));
  return (
    <article class="card form">
      <h2>{scheme.mode.replace(/_/g, " ")} {scheme.managed && <Badge of="ready" />}</h2>
      {scheme.guideUrl && <p><a href={scheme.guideUrl} target="_blank" rel="noopener noreferrer">How to get these</a></p>}
      {fields("appFields")}
      {fields("accountFields")}
      {!isTenant && <div class="field"><label htmlFor={`label-${scheme.mode}`}>Label</label><input id={`label-${scheme.mode}`} value={label} onInput={(event) => setLabel(event.currentTarget.value)} /></div>}
      <Act kind="main" run={connect}>Connect</Act>
      {address && /^https?:/.test(address) && <p><a class="button main" href={address} target="_blank" rel="noopener noreferrer">Log in at the app</a> <button type="button" onClick={done}>I have logged in</button></p>}
    </article>
  );
}

export const mayConnect = (): boolean => may("integrations:write", "POST /v1/integrations/{app}/connect") && may("integrations:read", "GET /v1/integrations/{app}/auth");

export function Connect({ app, done }: { app: Record_; done: () => void }): JSX.Element {
  const loaded = useLoad((signal) => get(`/v1/integrations/${app.slug}/auth`, {}, signal), [app.slug]);
  return <><Failure error={loaded.error} />{loaded.value?.schemes.map((scheme: Record_) => <Scheme key={scheme.mode} scheme={scheme} connect={(body) => post(`/v1/integrations/${app.slug}/connect`, body)} done={done} />)}</>;
}

/// What signs the deliveries of threads and agents that name an address themselves.
export function DefaultSecret(): JSX.Element {
  const secret = useLoad((signal) => get<Record_>("/v1/webhooks/default-secret", {}, signal), []);
  const [shown, setShown] = useState("");
  const rotate = async () => {
    setShown((await post("/v1/webhooks/default-secret/rotate")).secret);
    secret.again();
  };
  return (
    <section class="card" aria-label="Default secret">
      <p>Deliveries to callbackUrl and webhookUrl are signed with the default secret{secret.value?.configured ? `, which ends in ${secret.value.last4}` : ""}.</p>
      {may("webhooks:write") && <Act confirm="Deliveries are signed with the new secret from now on." run={rotate}>Rotate default secret</Act>}
      {shown && <p class="secret">Copy it now, it is shown once: <code>{shown}</code> <Copy text={shown} /></p>}
      <Failure error={secret.error} />
    </section>
  );
}

/// Exactly what a caller sees of an MCP profile.
export function Preview({ profile }: { profile: Record_ }): JSX.Element {
  const [kind, setKind] = useState("tenantId");
  const [id, setId] = useState("");
  const [seen, setSeen] = useState<Record_ | null>(null);
  return (
    <>
      <div class="row">
        <select aria-label="Caller" value={kind} onChange={(event) => setKind(event.currentTarget.value)}><option value="tenantId">tenant</option><option value="userUID">user</option><option value="keyId">key</option></select>
        <input aria-label="Id of the caller" value={id} onInput={(event) => setId(event.currentTarget.value)} />
        <Act kind="main" disabled={!id} run={() => get("/v1/mcp-gateway/preview", { profile: profile.slug, [kind]: id }).then(setSeen)}>Show what they see</Act>
      </div>
      {seen && <><p>{seen.tools.length} tools</p><ul>{seen.tools.map((tool: Record_) => <li key={tool.name}><code>{tool.name}</code> {tool.description}</li>)}</ul></>}
    </>
  );
}

/// The caller's own choice among the tools that are theirs.
export function MyTools({ profile }: { profile: Record_ }): JSX.Element {
  const path = withQuery("/v1/mcp-gateway/me/tools", { profile: profile.slug });
  const mine = useLoad((signal) => get(path, {}, signal), [path]);
  const [error, setError] = useState<Error | null>(null);
  if (mine.error instanceof ApiError && mine.error.status === 404) return <p>This profile is not open to you.</p>;
  const off: string[] = mine.value?.disabled ?? [];
  const turn = (name: string, on: boolean) => call("PUT", path, { body: { disabled: on ? off.filter((one) => one !== name) : [...off, name] } }).then(mine.again, setError);
  return (
    <>
      <Failure error={mine.error ?? error} />
      <p>Tools that are switched off here are hidden from your own MCP clients alone.</p>
      <ul class="entries">
        {mine.value?.available.map((name: string) => (
          <li key={name}><label><input type="checkbox" checked={!off.includes(name)} disabled={!may("mcp-gateway:write")} onChange={(event) => turn(name, event.currentTarget.checked)} /> <code>{name}</code></label>{off.includes(name) && <small> off for you</small>}</li>
        ))}
      </ul>
      {mine.value?.available.length === 0 && <p>No tool of this profile is yours yet.</p>}
    </>
  );
}
