// Who is at the console. Credentials are held in memory alone: a reload logs in again, by the cookie that only the
// log-in page can read, or asks for the key once more.
import { refusal } from "./api.ts";

const CLIENT = "platform-console";
/// Says that somebody was logged in in this tab, so that a reload asks the log-in page without being told to.
const RETURNS = "console.returns";
const PENDING = "console.pending";

interface Identity {
  kind: "key" | "user";
  label: string;
  isAdmin: boolean;
  /// What an access token is good for; of a key nothing is known but what it is refused.
  scopes: string[] | null;
  /// Whether this caller may make a call, such as `POST /v1/agents`, of those that were tried.
  tried: Map<string, boolean>;
  /// Id of the user.
  user: string | null;
  /// What this caller is in projects that were looked at; one that is a member of none reads.
  roles: Map<string, Role>;
}

export type Role = "viewer" | "editor" | "owner";
const ROLES: Role[] = ["viewer", "editor", "owner"];

interface Tokens {
  access_token: string;
  refresh_token: string;
  expires_in: number;
  scope: string;
}

let bearer: string | null = null;
let refreshToken: string | null = null;
let expiresAt = Infinity;
let takenAt = 0;
let refreshing: Promise<void> | null = null;
export let identity: Identity | null = null;
let onChange: () => void = () => undefined;
const forgotten: (() => void)[] = [];

/// What is to be forgotten when nobody is here any more.
export const whenGone = (what: () => void): void => void forgotten.push(what);

export const onIdentity = (changed: () => void): void => void (onChange = changed);

/// Why nobody is here, when somebody was.
export let farewell: string | null = null;

function become(who: Identity | null, why: string | null = null): void {
  [identity, farewell] = [who, why];
  if (!who) for (const forget of forgotten) forget();
  onChange();
}

const base64url = (bytes: Uint8Array): string =>
  btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

const random = (): string => base64url(crypto.getRandomValues(new Uint8Array(32)));

const home = (): string => location.origin + "/";

/// What the log-in page is asked (RFC 6749 §4.1.1, RFC 7636); what belongs to the answer waits in this tab.
async function request(): Promise<Record<string, string>> {
  if (!isSecureContext) throw new Error("A browser lets the console log in over https, or at localhost alone. Open it there, or use an API key.");
  const [verifier, state] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  sessionStorage.setItem(PENDING, JSON.stringify({ verifier, state, hash: location.hash }));
  return {
    response_type: "code",
    client_id: CLIENT,
    redirect_uri: home(),
    state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
}

/// Goes to the log-in page; `quietly`: only if it knows us.
export async function logIn(quietly = false): Promise<void> {
  const asked = new URLSearchParams(await request());
  if (quietly) asked.set("prompt", "none");
  location.assign("/oauth/authorize?" + asked);
}

/// Logs in with the link that the server printed. It is posted, so that no log shows it.
export async function follow(link: string): Promise<void> {
  const form = document.createElement("form");
  form.method = "post";
  form.action = "/oauth/authorize";
  const fields = { ...(await request()), decision: "allow", link };
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    [input.type, input.name, input.value] = ["hidden", name, value];
    form.append(input);
  }
  document.body.append(form);
  form.submit();
}

export function takeKey(key: string, isAdmin: boolean, label: string): void {
  [bearer, refreshToken, expiresAt] = [key, null, Infinity];
  become({ kind: "key", label, isAdmin, scopes: null, tried: new Map(), user: null, roles: new Map() });
}

function take(tokens: Tokens): void {
  [bearer, refreshToken] = [tokens.access_token, tokens.refresh_token];
  takenAt = Date.now();
  expiresAt = takenAt + (tokens.expires_in - 60) * 1000;
  const payload = tokens.access_token.split(".")[1] ?? "";
  const claims = JSON.parse(atob(payload.replace(/-/g, "+").replace(/_/g, "/")));
  localStorage.setItem(RETURNS, "1");
  const isAdmin = claims.role === "admin";
  const { tried, roles } = identity ?? { tried: new Map<string, boolean>(), roles: new Map<string, Role>() };
  become({ kind: "user", label: isAdmin ? "Administrator" : "Member", isAdmin, scopes: tokens.scope.split(" "), tried, user: claims.sub, roles });
}

async function exchange(fields: Record<string, string>): Promise<Tokens> {
  const answer = await fetch("/oauth/token", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ clientId: CLIENT, ...fields }),
  });
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  throw Object.assign(refusal(answer, { ...body, message: body?.error_description ?? body?.message }), { isOver: body?.error === "invalid_grant" });
}

/// The value of the link that led here, taken out of the address; whoever followed it says so themselves, since anybody
/// may lead anybody here.
export const linkGiven: string | null = /^#link=([A-Za-z0-9_-]+)$/.exec(location.hash)?.[1] ?? null;
if (linkGiven) history.replaceState(null, "", "/");
// One that is pasted over a page that is open is read as if that were opened.
addEventListener("hashchange", () => location.hash.startsWith("#link=") && location.reload());

/// Finds out who is here when the page opens; resolves to what went wrong, if anything did.
export async function begin(): Promise<string | null> {
  const given = new URLSearchParams(location.search);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "null");
  if (given.has("state") && pending) {
    sessionStorage.removeItem(PENDING);
    history.replaceState(null, "", "/" + pending.hash);
    if (given.get("state") !== pending.state) return "The answer of the log-in page belongs to another tab.";
    const code = given.get("code");
    if (!code) {
      localStorage.removeItem(RETURNS);
      return given.get("error") === "login_required" ? null : (given.get("error_description") ?? given.get("error"));
    }
    const fields = { grantType: "authorization_code", redirectUri: home(), code, codeVerifier: pending.verifier };
    return exchange(fields).then(take).then(() => null, (error) => error.message);
  }
  if (given.size) history.replaceState(null, "", "/" + location.hash);
  if (!linkGiven && localStorage.getItem(RETURNS)) {
    await logIn(true);
    return new Promise(() => undefined);
  }
  return null;
}

/// The credential for a request, renewed shortly before its end.
export async function authorization(): Promise<string> {
  if (refreshToken && Date.now() > expiresAt) await renew();
  return `Bearer ${bearer}`;
}

function renew(): Promise<void> {
  const fields = { grantType: "refresh_token", refreshToken: refreshToken! };
  const ended = (error: Error & { isOver?: boolean }) => {
    if (!error.isOver) throw error;
    refreshToken = null;
    become(null, "Your log-in has ended. Log in again.");
    throw error;
  };
  refreshing ??= exchange(fields).then(take, ended).finally(() => (refreshing = null));
  return refreshing;
}

/// The server no longer knows the credential, for this reason; a new one is asked for once, not again and again.
export function lost(why: string): void {
  if (!identity) return;
  const wasNew = Date.now() - takenAt < 60_000;
  const returns = refreshToken !== null && !wasNew;
  [bearer, refreshToken] = [null, null];
  if (!returns && identity.kind === "user") localStorage.removeItem(RETURNS);
  become(null, why);
  if (returns) void logIn(true);
}

/// Whoever logs out of one tab is out of all.
const tabs = new BroadcastChannel("console.log-out");
tabs.onmessage = () => identity?.kind === "user" && void end();

export async function logOut(): Promise<void> {
  if (identity?.kind !== "user") return leave(null);
  localStorage.removeItem(RETURNS);
  tabs.postMessage(null);
  await end();
}

function leave(why: string | null): void {
  [bearer, refreshToken] = [null, null];
  become(null, why);
}

async function end(): Promise<void> {
  const body = JSON.stringify({ token: refreshToken ?? undefined, clientId: CLIENT });
  const headers = { "Content-Type": "application/json" };
  const isOut = await fetch("/oauth/revoke", { method: "POST", headers, body }).then((answer) => answer.ok, () => false);
  leave(isOut ? null : "The server could not be told; this browser may still be logged in. Log in and out once more.");
}

const GROUP_WITHOUT_CATCH_ALL = /^(tenant-admin:|keys:write$)/;

/// What tells whether the caller may make it: of a key that is bound all calls, of a member those that read.
const isUnknown = (call: string): boolean =>
  !!identity && !identity.isAdmin && !identity.tried.has(call) && (identity.kind === "key" || call.startsWith("GET "));

export const allTried = (calls: string[]): boolean => !calls.some(isUnknown);

/// Makes calls with ids that nothing has, and bodies that are none, so that all they tell is whether they are refused.
export async function tryOut(calls: string[]): Promise<void> {
  const nothing = crypto.randomUUID();
  const headers = { Authorization: await authorization(), "Content-Type": "application/json" };
  const tried = identity!.tried;
  const tell = async (call: string): Promise<void> => {
    const [method, path] = call.split(" ") as [string, string];
    const hasBody = /^P/.test(method);
    const address = path.replace(/\{\w+\}/g, nothing) + (hasBody ? "" : "?limit=1");
    const answer = await fetch(address, { method, headers, body: hasBody ? "{" : undefined });
    const said = await answer.text();
    if (answer.status === 429) {
      await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
      return tell(call);
    }
    if (answer.status === 401) lost(JSON.parse(said).message);
    if (answer.status === 401 || answer.status >= 500) throw refusal(answer, null);
    tried.set(call, answer.status !== 403);
  };
  await Promise.all(calls.filter(isUnknown).map(tell));
}

/// Finds out what the caller is in a project, as [`mayIn`] needs it.
export async function lookAt(project: string | null | undefined): Promise<void> {
  const who = identity;
  if (!project || !who || who.isAdmin || who.roles.has(project)) return;
  const path = `/v1/projects/${encodeURIComponent(project)}/members`;
  const headers = { Authorization: await authorization(), "Content-Type": "application/json" };
  if (who.kind === "key") {
    // A key that is bound to projects is no owner of them, and is told so before anybody looks for a user whom nobody is.
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify({ userUID: crypto.randomUUID(), role: "viewer" }) });
    const { details } = await answer.json();
    if (answer.status < 429) who.roles.set(project, details?.requiredRole ? "editor" : "owner");
    return;
  }
  const answer = await fetch(path, { headers });
  if (!answer.ok) return;
  const members: { userUID: string; role: Role }[] = await answer.json();
  who.roles.set(project, members.find((member) => member.userUID === who.user)?.role ?? "viewer");
}

/// Whether the caller is so much in a project that was looked at.
export function mayIn(project: string | null | undefined, least: Role = "editor"): boolean {
  const role = project && identity && !identity.isAdmin ? identity.roles.get(project) : undefined;
  return !role || ROLES.indexOf(role) >= ROLES.indexOf(least);
}

/// Whether the caller may go on with a run in a project that was looked at: with their own, whatever they are there.
export const mayActIn = (project: string | null | undefined, runs: string | undefined): boolean => mayIn(project) || (!!runs && runs === identity?.user);

/// Whether the caller may do what takes this scope, by this call; `admin` is what takes a full key.
export function may(scope: string, call = ""): boolean {
  if (!identity) return false;
  if (call && !identity.isAdmin && !(identity.tried.get(call) ?? !isUnknown(call))) return false;
  if (identity.kind === "key") return scope !== "admin" || identity.isAdmin;
  const [group, right] = scope.split(":");
  const has = (name: string) => identity!.scopes!.includes(name);
  const caught = !GROUP_WITHOUT_CATCH_ALL.test(scope) && (has(`platform:${right}`) || has("platform:write"));
  return scope !== "admin" && (has(scope) || has(`${group}:write`) || caught);
}
