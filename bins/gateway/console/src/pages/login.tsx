// How one comes in.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { refusal } from "../api.ts";
import { Failure } from "../parts/basic.tsx";
import { farewell, follow, linkGiven, logIn, takeKey } from "../session.ts";

/// Whether a key is good, and whether it opens what takes a full one.
async function takeIfGood(key: string): Promise<void> {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Error("This is no API key.");
  const headers = { Authorization: `Bearer ${key}` };
  const away = () => { throw new Error("The server cannot be reached."); };
  const answer = await fetch("/v1/users?limit=1", { headers }).catch(away);
  const said = await answer.json().catch(() => null);
  if (!answer.ok && answer.status !== 403) throw refusal(answer, said);
  takeKey(key, answer.ok, `Key …${key.slice(-4)}`);
}

export function LogIn({ problem }: { problem: string | null }): JSX.Element {
  const [key, setKey] = useState("");
  const [error, setError] = useState<Error | null>(problem ?? farewell ? new Error(problem ?? farewell!) : null);
  const link = linkGiven;
  const submit = (event: Event) => {
    event.preventDefault();
    takeIfGood(key.trim()).catch(setError);
  };
  return (
    <main class="login">
      <h1>Console</h1>
      <Failure error={error} />
      <section class="card">
        <h2>With your account</h2>
        {link && <p><button type="button" class="main" onClick={() => follow(link).catch(setError)}>Log in with this link</button></p>}
        <button type="button" class={link ? undefined : "main"} onClick={() => logIn().catch(setError)}>Log in{link ? " with a password" : ""}</button>
        <p><small>The first start prints a link that logs you in; <code>platform-gateway users link</code> prints another.</small></p>
      </section>
      <form class="card" onSubmit={submit}>
        <h2>With an API key</h2>
        <label htmlFor="key">Key</label>
        <input id="key" type="password" autocomplete="off" spellcheck={false} value={key} onInput={(event) => setKey(event.currentTarget.value)} required />
        <p><small>It is kept in the memory of this tab alone. The first key is in the file <code>bootstrap-key</code> of the data directory.</small></p>
        <button>Use this key</button>
      </form>
      <p><a href="/docs">API reference</a></p>
    </main>
  );
}
