// What an assistant remembers of one tenant, or of one of its end users.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, download, get, post, withQuery } from "../api.ts";
import { number } from "../format.ts";
import type { Record_ } from "../groups.ts";
import type * as Api from "../schema.d.ts";
import { Act, Failure, useLoad } from "../parts/basic.tsx";
import { may, mayIn } from "../session.ts";

const SECTIONS = ["facts", "profile", "decisions", "instructions", "persona"];

/// Whose memory it is.
interface Owner {
  tenantId: string;
  subtenantId?: string;
}

export function Memory({ assistant }: { assistant: Record_ }): JSX.Element {
  const [tenantId, setTenant] = useState("");
  const [endUser, setEndUser] = useState("");
  const [shown, setShown] = useState<Owner | null>(null);
  const show = (event: Event) => (event.preventDefault(), setShown({ tenantId, subtenantId: endUser || undefined }));
  return (
    <>
      <form class="row" onSubmit={show}>
        <label>Tenant <input value={tenantId} onInput={(event) => setTenant(event.currentTarget.value)} /></label>
        <label>End user <input value={endUser} placeholder="of the whole tenant" onInput={(event) => setEndUser(event.currentTarget.value)} /></label>
        <button class="main" disabled={!tenantId}>Show memory</button>
      </form>
      {shown && <Entries key={JSON.stringify(shown)} assistant={assistant} of={shown} />}
    </>
  );
}

const can = (assistant: Record_, method: string, what = ""): boolean => mayIn(assistant.projectId) && may("memory:write", `${method} /v1/memory/assistants/{identifier}/core${what}`);

function Entries({ assistant, of }: { assistant: Record_; of: Owner }): JSX.Element {
  const [includeArchived, setArchived] = useState(false);
  const path = `/v1/memory/assistants/${encodeURIComponent(assistant.identifier)}/core`;
  const { value: memory, error, again } = useLoad<Api.CoreMemoryEntries>((signal) => get(path, { ...of, includeArchived }, signal), [path, includeArchived]);
  const save = (format: string, ending: string) => download(withQuery(path + "/export", { ...of, format }), `${assistant.identifier}-${of.tenantId}.${ending}`);
  const live = memory?.entries.filter((entry) => !entry.archivedAt) ?? [];
  return (
    <>
      <h2>{of.tenantId}{of.subtenantId && ` / ${of.subtenantId}`}</h2>
      <Failure error={error} />
      {memory && !memory.enabled && <p>Core memory is off for this assistant: set coreMemory.enabled in its settings.</p>}
      {memory?.enabled && (
        <>
          <div class="row">
            <span>{number(live.length)} of {number(memory.limits.maxEntries)} entries, {number(live.reduce((all, entry) => all + entry.content.length, 0))} of {number(memory.limits.maxChars)} characters · revision <code>{memory.revision}</code></span>
            <label class="check"><input type="checkbox" checked={includeArchived} onChange={(event) => setArchived(event.currentTarget.checked)} /> also what was forgotten</label>
            <Act run={() => save("json", "json")}>Save as JSON</Act> <Act run={() => save("markdown", "md")}>Save as Markdown</Act>
          </div>
          <ul class="entries">{memory.entries.map((entry) => <Entry key={entry.id} assistant={assistant} entry={entry} path={path} of={of} done={again} />)}</ul>
          {memory.entries.length === 0 && <p>Nothing is remembered yet.</p>}
          {can(assistant, "POST") && <New make={(body) => post(withQuery(path, { ...of }), body).then(again)} />}
        </>
      )}
    </>
  );
}

interface EntryProps {
  assistant: Record_;
  entry: Api.MemoryEntry;
  path: string;
  of: Owner;
  done: () => void;
}

function Entry({ assistant, entry, path, of, done }: EntryProps): JSX.Element {
  const [text, setText] = useState<string | null>(null);
  const at = withQuery(`${path}/${entry.id}`, { ...of });
  const change = (body: object) => call("PATCH", at, { body }).then(done);
  const marks = [entry.section, entry.source, entry.pinned && "pinned", entry.readOnly && "read-only", entry.archivedAt && "forgotten"].filter(Boolean);
  return (
    <li>
      <small>{marks.join(" · ")}</small>
      {text === null ? <p>{entry.content}</p> : <textarea aria-label="What is remembered" rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />}
      {!entry.archivedAt && !entry.readOnly && (
        <div class="row">
          {can(assistant, "PATCH", "/{entryId}") && (text === null
            ? <button type="button" class="quiet" onClick={() => setText(entry.content)}>Change</button>
            : <><Act disabled={!text.trim()} run={() => change({ content: text }).then(() => setText(null))}>Save</Act> <button type="button" class="quiet" onClick={() => setText(null)}>Leave it</button></>)}
          {can(assistant, "PATCH", "/{entryId}") && <Act kind="quiet" run={() => change({ pinned: !entry.pinned })}>{entry.pinned ? "Unpin" : "Pin"}</Act>}
          {can(assistant, "DELETE", "/{entryId}") && <Act kind="quiet" run={() => call("DELETE", at).then(done)}>Forget</Act>}
        </div>
      )}
    </li>
  );
}

function New({ make }: { make: (body: object) => Promise<void> }): JSX.Element {
  const [content, setContent] = useState("");
  const [section, setSection] = useState("facts");
  const [pinned, setPinned] = useState(false);
  return (
    <div class="row">
      <input aria-label="What to remember" placeholder="What to remember" value={content} onInput={(event) => setContent(event.currentTarget.value)} />
      <input aria-label="Section" placeholder="Section" list="memory-sections" value={section} onInput={(event) => setSection(event.currentTarget.value)} />
      <datalist id="memory-sections">{SECTIONS.map((one) => <option key={one} value={one} />)}</datalist>
      <label class="check"><input type="checkbox" checked={pinned} onChange={(event) => setPinned(event.currentTarget.checked)} /> pinned</label>
      <Act disabled={!content.trim()} run={() => make({ content, section, pinned }).then(() => setContent(""))}>Remember</Act>
    </div>
  );
}
