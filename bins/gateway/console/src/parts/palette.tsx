// Everything there is, found by typing.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.ts";
import { go, href } from "../router.ts";
import { may } from "../session.ts";
import { Dialog } from "./basic.tsx";

export interface Command {
  title: string;
  hint?: string;
  run: () => void;
}

/// Records whose names match.
async function found(text: string, signal: AbortSignal): Promise<Command[]> {
  const to = (...path: string[]) => () => go(href(...path));
  const lists: Promise<Command[]>[] = [];
  if (may("assistants:read")) lists.push(get("/v1/assistants", { search: text }, signal).then((all) => all.slice(0, 5).map((it: any) => ({ title: it.name, hint: "assistant", run: to("assistants", it.identifier) }))));
  if (may("agents:read")) lists.push(get("/v1/agents", { search: text, limit: 5 }, signal).then((got) => got.agents.map((it: any) => ({ title: it.name, hint: "agent", run: to("agents", it._id) }))));
  if (may("tenants:read")) lists.push(get("/v1/tenants", { search: text, limit: 5 }, signal).then((got) => got.items.map((it: any) => ({ title: it.displayName || it.tenantId, hint: "tenant", run: to("tenants", it.tenantId) }))));
  if (may("documents:read")) lists.push(get("/v1/documents", { search: text, limit: 5 }, signal).then((got) => got.documents.map((it: any) => ({ title: it.name, hint: "document", run: to("documents", it._id) }))));
  const id = text.toLowerCase();
  if (/^[0-9a-f-]{36}$/.test(id) && may("agents:read")) lists.push(get(`/v1/agents/threads/${id}`, { omitContent: true }, signal).then((it) => [{ title: it.name || id, hint: "thread", run: to("threads", id) }]));
  const settled = await Promise.allSettled(lists);
  return settled.flatMap((list) => (list.status === "fulfilled" ? list.value : []));
}

export function Palette({ commands, close }: { commands: Command[]; close: () => void }): JSX.Element {
  const [text, setText] = useState("");
  const [records, setRecords] = useState<Command[]>([]);
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  useEffect(() => {
    setAt(0);
    setRecords([]);
    if (text.trim().length < 2) return;
    const leaving = new AbortController();
    const timer = setTimeout(() => found(text.trim(), leaving.signal).then((all) => leaving.signal.aborted || setRecords(all)), 150);
    return () => (clearTimeout(timer), leaving.abort());
  }, [text]);
  const letters = text.toLowerCase();
  const shown = [...commands.filter((command) => command.title.toLowerCase().includes(letters)), ...records].slice(0, 12);
  const choose = (command: Command | undefined) => {
    if (!command) return;
    close();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) {
      event.preventDefault();
      setAt(Math.max(0, Math.min(shown.length - 1, at + step)));
    }
    if (event.key === "Enter") choose(shown[at]);
  };
  return (
    <Dialog title="Go to" close={close}>
      <input ref={input} role="combobox" aria-label="Page, action or record" aria-expanded={shown.length > 0} aria-controls="palette" aria-activedescendant={shown[at] ? `palette-${at}` : undefined} value={text} placeholder="A page, an action, a name or the id of a thread" onInput={(event) => setText(event.currentTarget.value)} onKeyDown={key} />
      <ul id="palette" role="listbox" aria-label="Found">
        {shown.map((command, i) => <li key={i} id={`palette-${i}`} role="option" aria-selected={i === at} onClick={() => choose(command)}>{command.title} <small>{command.hint}</small></li>)}
      </ul>
      {shown.length === 0 && <p role="status">Nothing found.</p>}
    </Dialog>
  );
}
