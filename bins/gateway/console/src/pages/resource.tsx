// The list of a group, and one of its records with what can be done with it.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { call, download, send, withQuery } from "../api.ts";
import { bytes, duration, words } from "../format.ts";
import { type Action, type Below, fill, group as groupOf, type Group, idOf, nameOf, page, type Record_ } from "../groups.ts";
import { Act, Badge, Copy, Dialog, Empty, Failure, Json, type Tab, Tabs, useLoad, When } from "../parts/basic.tsx";
import { Form } from "../parts/form.tsx";
import { type Column, List } from "../parts/list.tsx";
import { go, href, useQuery, useRoute } from "../router.ts";
import { lookAt, may, mayIn } from "../session.ts";

/// What is below these takes a full key.
const ADMIN = /^\/v1\/(tenant-admin|users|oauth-clients)/;

/// The project that a record is in, or is.
const projectOf = (group: Group, record?: Record_): string | undefined => record && (group.id === "projects" ? idOf(group, record) : record.projectId);

/// Whether the caller may make a call of a group, about a record of it.
function can(group: Group, method: string, path: string, record?: Record_): boolean {
  const scope = method === "GET" ? group.scope : group.scope.replace(":read", ":write");
  if (method !== "GET" && !mayIn(projectOf(group, record), group.id === "projects" ? "owner" : "editor")) return false;
  return may(ADMIN.test(path) && method !== "GET" ? "admin" : scope, `${method} ${path}`);
}

export const creates = (group: Group): boolean => !!group.create && can(group, "POST", group.create.path ?? group.path);

/// A value as it stands in a list.
function Value({ name, value }: { name: string; value: unknown }): JSX.Element {
  if (value === undefined || value === null || value === "") return <span class="none">–</span>;
  if (/(Ms|At|expiresAt|SeenAt|lastEventAt)$/.test(name) && name !== "durationMs" && name !== "timeoutMs") return <When at={value as number | string} />;
  if (name === "durationMs") return <>{duration(value as number)}</>;
  if (name === "size" || name === "sizeBytes") return <>{bytes(value as number)}</>;
  if (/^(state|status|health|outcome|visibility|role|kind)$/.test(name)) return <Badge of={value} />;
  if (typeof value === "boolean") return value ? <span>yes</span> : <span class="none">no</span>;
  if (Array.isArray(value)) return <span>{value.length > 3 || typeof value[0] === "object" ? `${value.length}` : value.join(", ") || "–"}</span>;
  if (typeof value === "object") return <code>{JSON.stringify(value)}</code>;
  return <span title={String(value)}>{String(value)}</span>;
}

/// A value that is shown this once, or an answer that says what happened.
function Answer({ value, close }: { value: any; close: () => void }): JSX.Element {
  const secret = value?.key ?? value?.secret ?? value?.clientSecret;
  return (
    <Dialog title={secret ? "Copy it now" : "Done"} close={close} wide stays>
      {secret && <><p>This is shown once; it cannot be read again.</p><p class="secret"><code>{secret}</code> <Copy text={secret} /></p></>}
      <details open={!secret}><summary>Answer</summary><Json value={secret ? { ...value, key: undefined, secret: undefined, clientSecret: undefined } : value} /></details>
    </Dialog>
  );
}

/// Buttons for what can be done with a record; `done` is told that it was, and the answer if it is to be shown.
function Actions({ group, actions, record, of = record, ids, done, row }: { row?: boolean; of?: Record_; group: Group; actions: Action[]; record: Record_; ids: Record_; done: (answer: unknown) => void }): JSX.Element {
  const [asked, setAsked] = useState<Action | null>(null);
  const run = async (action: Action, body: unknown) => {
    if (action.method === "GET" && !action.shows) return download(fill(action.path, ids), `${record.name}.zip`);
    const got = await call(action.method, fill(action.path, ids), { body });
    setAsked(null);
    done(action.shows ? got : null);
  };
  const open = actions.filter((action) => can(group, action.method, action.path, of) && (action.when?.(record) ?? true));
  return (
    <>
      {open.map((action) =>
        action.asks ? <button type="button" key={action.title} class={action.kind} onClick={() => setAsked(action)}>{action.title}</button>
          : <Act key={action.title} row={row} kind={action.kind} confirm={action.confirm} run={() => run(action, /^(GET|DELETE)$/.test(action.method) ? undefined : (action.bodyOf?.(record) ?? action.body ?? {}))}>{action.title}</Act>)}
      {asked && (
        <Dialog title={asked.title} close={() => setAsked(null)}>
          <Form method={asked.method} path={asked.path} first={asked.asks} record={asked.method === "PUT" ? record : undefined} label={asked.title}
            submit={(body) => run(asked, asked.method === "PUT" ? { ...record, ...body } : body)} />
        </Dialog>
      )}
    </>
  );
}

export function ListPage({ group, above }: { group: Group; above?: ComponentChildren }): JSX.Element {
  const at = useRoute();
  const [turn, setTurn] = useState(0);
  const [making, setMaking] = useQuery("new");
  const [answer, setAnswer] = useState<unknown>(null);
  const query = Object.fromEntries((group.filters ?? []).map((filter) => [filter.name, at.query.get(filter.name) ?? undefined]));
  const make = async (body: Record<string, unknown>) => {
    const record = await call("POST", group.create!.path ?? group.path, { body });
    setMaking("");
    setTurn((turn) => turn + 1);
    if (group.create!.shows) setAnswer(record);
    else if (!group.isFlat) go(href(group.id, idOf(group, record)));
  };
  const columns = group.columns.map((name, i) => ({
    title: words(name.replace(/(TimestampMs|Ms|At)$/, "")).replace(/^Last edit$/, "Changed"),
    of: (record: Record_) => (i === 0 && !group.isFlat ? nameOf(group, record) : <Value name={name} value={record[name]} />),
    width: i === 0 ? "minmax(8rem, 2fr)" : undefined,
  }));
  const rowActions = group.isFlat ? [...(group.actions ?? [])] : [];
  if (group.isFlat && group.remove) rowActions.push({ title: "Delete", method: "DELETE", path: `${group.path}/{${group.id_}}` as Action["path"], kind: "danger", confirm: group.remove });
  if (rowActions.length) {
    columns.push({ title: "Actions", width: "minmax(9rem, 1fr)", of: (record) => <span class="row"><Actions row group={group} actions={rowActions} record={record} ids={{ [group.id_]: idOf(group, record) }} done={(answer) => (setAnswer(answer), setTurn((turn) => turn + 1))} /></span> });
  }
  return (
    <>
      <header class="page">
        <h1>{group.title}</h1>
        <div class="row">
          {group.filters?.map((filter) => <FilterField key={filter.name} {...filter} />)}
          {creates(group) && <button type="button" class="main" onClick={() => setMaking("1")}>New {group.one}</button>}
        </div>
      </header>
      {above}
      <List label={group.title} columns={columns} of={[group.id, turn, JSON.stringify(query)]} empty={Object.values(query).some(Boolean) ? "Nothing matches." : group.empty}
        load={(offset, limit, signal) => page(group, group.path, query, offset, limit, signal)}
        href={group.isFlat ? undefined : (record) => href(group.id, idOf(group, record))} />
      {making && creates(group) && (
        <Dialog title={`New ${group.one}`} close={() => setMaking("")} wide>
          <Form method="POST" path={group.create!.path ?? group.path} first={group.create!.first} submit={make} label={`Make ${group.one}`} />
        </Dialog>
      )}
      {answer !== null && <Answer value={answer} close={() => setAnswer(null)} />}
    </>
  );
}

export function FilterField({ name, choices, none, label = words(name) }: { name: string; choices?: string[]; none?: string; label?: string }): JSX.Element {
  const [value, set] = useQuery(name);
  if (!choices) return <input type="search" aria-label={label} placeholder={label} value={value} onChange={(event) => set(event.currentTarget.value)} />;
  return (
    <select aria-label={label} value={value} onChange={(event) => set(event.currentTarget.value)}>
      <option value="">{none ?? `${label}: any`}</option>
      {choices.map((choice) => <option key={choice} value={choice}>{choice === "true" ? `${label}` : choice === "false" ? `not ${label.toLowerCase()}` : choice.replace(/_/g, " ")}</option>)}
    </select>
  );
}

/// A record with its tabs; `first` are the tabs of its own kind.
export function RecordPage({ group, id, first, last = () => [] }: { group: Group; id: string; first?: (record: Record_, again: () => void) => Tab[]; last?: (record: Record_, again: () => void) => Tab[] }): JSX.Element {
  const path = `${group.path}/{${group.id_}}`;
  const ids = { [group.id_]: id };
  const loaded = useLoad(async (signal) => {
    const answer = await send("GET", withQuery(fill(group.record?.path ?? path, ids), group.read ?? {}), { signal });
    const got = (await answer.json()) as Record_;
    const record = group.record?.of(got) ?? got;
    await lookAt(projectOf(group, record));
    return { record, etag: answer.headers.get("ETag") };
  }, [group.id, id]);
  const [tab, setTab] = useQuery("tab");
  const [answer, setAnswer] = useState<unknown>(null);
  // What was done with the record may have changed what is below it.
  const [acted, setActed] = useState(0);
  if (loaded.error && !loaded.value) return <Failure error={loaded.error} />;
  if (!loaded.value) return <p role="status">Loading…</p>;
  const { record, etag } = loaded.value;
  const change = async (body: Record<string, unknown>) => {
    await call("PATCH", fill(path, ids), { body, headers: etag ? { "If-Match": etag } : {} });
    loaded.again();
  };
  const remove = async () => {
    await call("DELETE", fill(path, ids));
    go(href(group.id));
  };
  const changes = (method: string) => can(group, method, path, record) && !group.isBuiltIn?.(record);
  const tabs: Tab[] = [
    ...(first?.(record, loaded.again) ?? []),
    ...(group.edit && changes("PATCH")
      ? [{ id: "settings", title: "Settings", view: () => <Form method="PATCH" path={path} first={group.edit!.first} without={group.edit!.without} record={record} submit={change} label="Save" /> }]
      : []),
    ...last(record, loaded.again),
    ...(group.below ?? []).filter((rows) => can(group, "GET", rows.path)).map((rows) => ({ id: words(rows.title).toLowerCase(), title: rows.title, view: () => <Rows key={rows.path + rows.title + acted} group={group} above={record} rows={rows} ids={ids} done={loaded.again} /> })),
    { id: "json", title: "JSON", view: () => <Json value={record} /> },
  ];
  return (
    <>
      <header class="page">
        <h1><a href={href(group.id)}>{group.title}</a> <span aria-hidden="true">/</span> {nameOf(group, record)} {(record.state ?? record.status) && <Badge of={record.state ?? record.status} />}</h1>
        <div class="row">
          <Actions group={group} actions={group.actions ?? []} record={record} ids={ids} done={(answer) => (setAnswer(answer), setActed((acted) => acted + 1), loaded.again())} />
          {group.remove && changes("DELETE") && <Act kind="danger" confirm={group.remove} run={remove}>Delete</Act>}
        </div>
      </header>
      <p class="id"><code>{id}</code> <Copy text={id} /></p>
      <Failure error={loaded.error} />
      <Tabs tabs={tabs} open={tab} set={setTab} />
      {answer !== null && <Answer value={answer} close={() => setAnswer(null)} />}
    </>
  );
}

/// What is below a record.
function Rows({ group, above, rows, ids, done }: { group: Group; above: Record_; rows: Below; ids: Record_; done: () => void }): JSX.Element {
  const of = rows.group ? groupOf(rows.group) : undefined;
  const [turn, setTurn] = useState(0);
  const [shown, setShown] = useState<Record_ | null>(null);
  const [answer, setAnswer] = useState<unknown>(null);
  const columns: Column<Record_>[] = rows.columns.map((name) => ({ title: words(name.replace(/(TimestampMs|Ms|At)$/, "")), of: (row: Record_) => <Value name={name} value={row[name]} /> }));
  columns.push({
    title: "Actions",
    width: `minmax(0, ${1 + (rows.actions?.length ?? 0)}fr)`,
    of: (row) => (
      <span class="row">
        <button type="button" class="quiet" onClick={() => setShown(row)}>Details</button>
        {rows.actions && <Actions row group={group} of={above} actions={rows.actions} record={row} ids={{ ...ids, [rows.id![0]]: row[rows.id![1]] }} done={(answer) => (setAnswer(answer), setTurn((turn) => turn + 1), done())} />}
      </span>
    ),
  });
  return (
    <>
      <List label={rows.title} columns={columns} of={[rows.path, rows.title, JSON.stringify(ids), turn]} empty={<Empty>Nothing here yet.</Empty>}
        href={of && ((row) => href(of.id, idOf(of, row)))}
        load={(offset, limit, signal) => page(rows, fill(rows.path, ids), rows.filter ? { [rows.filter]: ids[group.id_] } : {}, offset, limit, signal)} />
      {answer !== null && <Answer value={answer} close={() => setAnswer(null)} />}
      {shown && <Dialog title={rows.title} close={() => setShown(null)} wide><Json value={shown} /></Dialog>}
    </>
  );
}
