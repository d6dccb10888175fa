// A terminal on the machine of an environment, and its files.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { frames, get, post, send } from "../api.ts";
import { bytes, duration } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Failure, useLoad, When } from "../parts/basic.tsx";
import { may, mayIn } from "../session.ts";

interface Line {
  kind: "asked" | "stdout" | "stderr" | "exit";
  text: string;
}

/// What is kept in sight, in characters.
const MOST_TEXT = 500_000;

/// Lines with some more, without the oldest when they are too much.
function kept(lines: Line[], more: Line[]): Line[] {
  const all = [...lines, ...more];
  let [size, first] = [0, all.length];
  while (first > 0 && size < MOST_TEXT) size += all[--first]!.text.length;
  return all.slice(first);
}

const can = (what: string): boolean => may("sandbox:write", `POST /v1/environments/{environmentId}/sandbox/${what}`);

export const mayWorkAt = (environment: Record_): boolean => mayIn(environment.projectId) && can("exec") && may("sandbox:read", "GET /v1/environments/{environmentId}/sandbox/status");

/// The machine of the environment itself, or of one of its tenants.
export function Terminal({ environment }: { environment: Record_ }): JSX.Element {
  const [tenant, setTenant] = useState("");
  const [typed, setTyped] = useState("");
  return (
    <>
      <form class="row" onSubmit={(event) => (event.preventDefault(), setTenant(typed.trim()))}>
        <label>Tenant <input value={typed} placeholder="of none" onInput={(event) => setTyped(event.currentTarget.value)} onChange={() => setTenant(typed.trim())} /></label>
      </form>
      <Shell key={tenant} path={`/v1/environments/${environment._id}/sandbox`} tenantId={tenant || undefined} />
    </>
  );
}

function Shell({ path, tenantId }: { path: string; tenantId?: string }): JSX.Element {
  const status = useLoad((signal) => get(path + "/status", { tenantId }, signal), [path, tenantId]);
  const [lines, setLines] = useState<Line[]>([]);
  const [command, setCommand] = useState("");
  const [cwd, setCwd] = useState("~");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const before = useRef<string[]>([]);
  const at = useRef(0);
  const screen = useRef<HTMLPreElement>(null);
  useEffect(() => screen.current?.scrollTo(0, screen.current.scrollHeight), [lines]);
  const said = useRef<Line[]>([]);
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  // What a command says is drawn once a frame, however much it is.
  const say = (line: Line) => {
    if (said.current.push(line) > 1) return;
    requestAnimationFrame(() => {
      const more = said.current;
      said.current = [];
      setLines((now) => kept(now, more));
    });
  };
  const { sandboxId, online, expiresAt } = status.value ?? {};
  const run = async () => {
    if (!command.trim() || busy) return;
    before.current.push(command);
    at.current = before.current.length;
    say({ kind: "asked", text: `${cwd} $ ${command}` });
    setCommand("");
    setBusy(true);
    setError(null);
    try {
      running.current = new AbortController();
      const { signal } = running.current;
      const answer = await send("POST", path + "/exec?stream=true", { body: { sandboxId, command }, signal });
      for await (const { event, data } of frames(answer)) {
        if (event === "error") throw new Error(data.error.message);
        if (event === "stdout" || event === "stderr") say({ kind: event, text: data.text });
        if (event === "exit") {
          setCwd(data.cwd);
          // It may have ended because its machine has.
          if (data.exitCode) status.again();
          say({ kind: "exit", text: `${data.exitCode ? `exit ${data.exitCode}, ` : ""}${duration(data.durationMs)}` });
        }
      }
    } catch (error) {
      if (running.current?.signal.aborted) say({ kind: "exit", text: "no longer watched; it runs to its end" });
      else setError(error as Error);
      status.again();
    }
    setBusy(false);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter") void run();
    const step = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
    if (!step) return;
    event.preventDefault();
    at.current = Math.min(before.current.length, Math.max(0, at.current + step));
    setCommand(before.current[at.current] ?? "");
  };
  return (
    <>
      <Failure error={status.error} />
      <div class="row">
        {online
          ? <><Badge of={status.value.status} /> <span>ends <When at={expiresAt} /></span> {can("stop") && <Act run={() => post(path + "/stop", { sandboxId }).then(status.again)}>Stop the machine</Act>}</>
          : can("start") && <Act kind="main" run={() => post(path + "/start", { tenantId }).then(status.again)}>Start the machine</Act>}
      </div>
      {online && (
        <>
          <pre class="terminal" role="log" ref={screen} tabIndex={0} aria-label="Output">{lines.map((line, i) => <span key={i} class={line.kind}>{line.text}{line.kind === "asked" || line.kind === "exit" ? "\n" : ""}</span>)}</pre>
          <div class="row prompt-line"><code>{cwd} $</code><input aria-label="Command" class="code" value={command} autocomplete="off" spellcheck={false} aria-busy={busy} onInput={(event) => setCommand(event.currentTarget.value)} onKeyDown={key} />{busy && <button type="button" onClick={() => running.current?.abort()}>Stop watching</button>}</div>
          <Failure error={error} />
          {can("files/list") && <Files path={path} sandboxId={sandboxId} />}
        </>
      )}
    </>
  );
}

function Files({ path, sandboxId }: { path: string; sandboxId: string }): JSX.Element {
  const [at, setAt] = useState(".");
  const [shown, setShown] = useState<Record_ | null>(null);
  const [open, setOpen] = useState(false);
  const listed = useLoad((_) => (open ? post(path + "/files/list", { sandboxId, path: at }) : Promise.resolve(null)), [path, sandboxId, at, open]);
  const read = (file: string) => post(path + "/files/read", { sandboxId, path: file }).then(setShown);
  return (
    <details class="card" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Files in <code>{listed.value?.path ?? at}</code></summary>
      <Failure error={listed.error} />
      <ul class="files">
        {at !== "." && <li><button type="button" class="quiet" onClick={() => setAt(".")}>⌂ home</button></li>}
        {listed.value?.entries.map((entry: Record_) => (
          <li key={entry.path}>{entry.type === "dir" ? <button type="button" class="quiet" onClick={() => setAt(entry.path)}>{entry.name}/</button> : !can("files/read") ? entry.name : <Act kind="quiet" run={() => read(entry.path)}>{entry.name}</Act>} <small>{entry.type === "file" && bytes(entry.size)}</small></li>
        ))}
      </ul>
      {shown && <><p class="label">{shown.path}</p><pre class="json" tabIndex={0}>{shown.content}</pre></>}
    </details>
  );
}
