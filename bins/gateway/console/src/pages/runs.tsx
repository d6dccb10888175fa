// Chats and threads in one list, with every filter that the API has.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { call, get, withQuery } from "../api.ts";
import { money, number } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Copy, Json, Tabs, useLoad, Failure, When } from "../parts/basic.tsx";
import { List, type Page } from "../parts/list.tsx";
import { go, href, useQuery, useRoute } from "../router.ts";
import { lookAt, may, mayActIn, mayIn } from "../session.ts";
import { ChatView, Composer, useChat } from "./playground.tsx";
import { FilterField } from "./resource.tsx";

const THREAD_STATES = ["queued", "processing", "completed", "failed", "terminated", "paused", "paused_for_approval", "approval_rejected", "waiting_for_response", "paused_for_resume", "handed_off", "guardrail_trigger", "under_construction", "limit_exceeded"];

/// How threads may be ordered, beside newest first.
const ORDERS: Record<string, Record_> = {
  "oldest first": { dateOrder: "asc" },
  "longest first": { durationOrder: "desc" },
  "shortest first": { durationOrder: "asc" },
  "most tokens first": { tokensOrder: "desc" },
  "fewest tokens first": { tokensOrder: "asc" },
};

const count = (value: string): number | undefined => (value ? Number(value) : undefined);

/// `plan.name=pro` as the object that metadata must contain.
function pairs(value: string): Record_ | undefined {
  const [path, ...rest] = value.split("=");
  if (!path || !rest.length) return undefined;
  const given = rest.join("=").trim();
  // A number or a truth is one, unless it stands in quotes.
  const meant = /^(-?(0|[1-9]\d{0,14})(\.\d+)?|true|false|"[^"\\]*")$/.test(given) ? JSON.parse(given) : given;
  return path.split(".").reduceRight<any>((inner, name) => ({ [name.trim()]: inner }), meant);
}

/// What only chats can be filtered by, and what only threads can.
const OF_CHATS = ["search", "assistant", "llm", "minInputTokens", "minOutputTokens", "metadata", "archived"];
const OF_THREADS = ["agentId", "projectId", "state", "order"];
const OF_BOTH = ["tenantId", "subtenantId", "tags", "from", "to"];

const text = (value: string): string | undefined => value || undefined;
const ms = (day: string, end = false): number | undefined => (day ? Date.parse(day + (end ? "T23:59:59.999" : "T00:00")) : undefined);

export const canThreads = (): boolean => may("agents:read", "GET /v1/agents/threads");
export const canChats = (): boolean => may("assistants:read", "POST /v1/assistants/chats");

export function threads(query: Record_, offset: number, limit: number, signal?: AbortSignal): Promise<Page<Record_>> {
  return get("/v1/agents/threads", { ...query, omitContent: true, limit, offset }, signal).then((page) => ({ rows: page.threads, total: page.total }));
}

export function chats(filter: Record_, offset: number, limit: number, signal?: AbortSignal): Promise<Page<Record_>> {
  const path = withQuery("/v1/assistants/chats", { omitContent: true, limit, offset });
  return call("POST", path, { body: filter, signal }).then((page) => ({ rows: page.histories, total: page.total }));
}

export const cost = (record: Record_): string => money((record.tokenUsage?.cost?.totalCost ?? 0) + (record.tokenUsage?.secondaryCost ?? 0));

const tokens = (record: Record_): string => number(record.totalTokens ?? (record.inputTokens ?? 0) + (record.outputTokens ?? 0));

export const THREAD_COLUMNS = [
  { title: "Thread", of: (it: Record_) => it.name || it._id, width: "minmax(8rem, 2fr)" },
  { title: "State", of: (it: Record_) => <Badge of={it.state} /> },
  { title: "Tenant", of: (it: Record_) => it.tenantId ?? "–" },
  { title: "Tokens", of: tokens },
  { title: "Cost", of: cost },
  { title: "Started", of: (it: Record_) => <When at={it.creationTimestampMs} /> },
];

export const CHAT_COLUMNS = [
  { title: "Chat", of: (it: Record_) => it.name || it.chatUID, width: "minmax(8rem, 2fr)" },
  { title: "Status", of: (it: Record_) => <Badge of={it.status} /> },
  { title: "Tenant", of: (it: Record_) => it.tenantId ?? "–" },
  { title: "Tokens", of: tokens },
  { title: "Cost", of: cost },
  { title: "Last change", of: (it: Record_) => <When at={it.lastEditTimestampMs} /> },
];

const isChat = (run: Record_): boolean => "chatUID" in run;

const RUN_COLUMNS = [
  { title: "Run", of: (it: Record_) => it.name || it.chatUID || it._id, width: "minmax(8rem, 2fr)" },
  { title: "Kind", of: (it: Record_) => (isChat(it) ? "Chat" : "Thread") },
  { title: "State", of: (it: Record_) => <Badge of={it.state ?? it.status} /> },
  { title: "Tenant", of: (it: Record_) => it.tenantId ?? "–" },
  { title: "Tokens", of: tokens },
  { title: "Cost", of: cost },
  { title: "Started", of: (it: Record_) => <When at={it.creationTimestampMs} /> },
];

/// Rows of several lists as one; to place a row all before it are read, so there is an end.
const NEWEST = 2_000;

type Load = (offset: number, limit: number) => Promise<Page<Record_>>;

/// Lists that begin with the newest as one that does, each page of theirs read once.
function newest(lists: Load[]): Load {
  const read = lists.map((): Promise<Page<Record_>>[] => []);
  return async (offset, limit) => {
    const page = (i: number, at: number) =>
      (read[i]![at / limit] ??= lists[i]!(at, limit).catch((error) => {
        delete read[i]![at / limit];
        throw error;
      }));
    const pages = await Promise.all(lists.map(async (_, i) => {
      const { total } = await page(i, 0);
      const asked = [];
      for (let at = 0; at < Math.min(total, offset + limit); at += limit) asked.push(page(i, at));
      return { total, rows: (await Promise.all(asked)).flatMap((got) => got.rows) };
    }));
    const total = pages.reduce((sum, of) => sum + of.total, 0);
    const rows = pages.flatMap((of) => of.rows).sort((a, b) => b.creationTimestampMs - a.creationTimestampMs);
    return { rows: rows.slice(offset, offset + limit), total: Math.min(total, NEWEST) };
  };
}

function AllRuns({ lists, of }: { lists: Load[]; of: string }): JSX.Element {
  const load = useMemo(() => (lists.length === 1 ? lists[0]! : newest(lists)), [of]);
  return (
    <>
      <List label="Runs" columns={RUN_COLUMNS} of={[of]} href={runHref} load={load}
        empty="No runs match. Begin a chat in the playground of an assistant, or start a thread at an agent." />
      {lists.length === 2 && <p>The newest {number(NEWEST)} at most; chats alone and threads alone have no end.</p>}
      {lists.length === 0 && <p>No run has all of these: some are of chats alone, others of threads alone.</p>}
    </>
  );
}

const runHref = (run: Record_): string => (isChat(run) ? chatHref(run) : href("threads", run._id));

export const chatHref = (chat: Record_): string => href("chats", chat.assistantSpecializationIdentifier, chat.chatUID);

export function Runs(): JSX.Element {
  const at = useRoute();
  const [kind, setKind] = useQuery("kind");
  const value = (name: string) => at.query.get(name) ?? "";
  const query = Object.fromEntries([...OF_CHATS, ...OF_THREADS, ...OF_BOTH].map((name) => [name, value(name)]));
  const isAsked = (names: string[]) => names.some((name) => query[name]);
  const ofThreads = {
    tenantId: text(query.tenantId!), subtenantId: text(query.subtenantId!), tags: text(query.tags!), startDate: ms(query.from!), endDate: ms(query.to!, true),
    ...ORDERS[query.order!], agentId: text(query.agentId!), projectId: text(query.projectId!), state: text(query.state!),
  };
  const ofChats = {
    tenantId: text(query.tenantId!), subtenantId: text(query.subtenantId!), tags: query.tags ? query.tags.split(",") : undefined, createdAfter: ms(query.from!), createdBefore: ms(query.to!, true),
    search: text(query.search!), assistantSpecializationIdentifier: text(query.assistant!), llm: text(query.llm!), minInputTokens: count(query.minInputTokens!), minOutputTokens: count(query.minOutputTokens!), metadata: pairs(query.metadata!), archived: query.archived === "true" || undefined,
  };
  const key = JSON.stringify(query);
  const common = (
    <>
      <FilterField name="tenantId" label="Tenant" />
      <FilterField name="subtenantId" label="User of the tenant" />
      <FilterField name="tags" />
      <DayField name="from" />
      <DayField name="to" />
    </>
  );
  const onlyChats = <><FilterField name="search" label="Title" /><FilterField name="assistant" label="Assistant" /><FilterField name="llm" label="Model" /><FilterField name="minInputTokens" label="Tokens in, at least" /><FilterField name="minOutputTokens" label="Tokens out, at least" /><FilterField name="metadata" label="Metadata: name=value" /><FilterField name="archived" choices={["true"]} none="Not archived" /></>;
  const onlyThreads = <><FilterField name="agentId" label="Agent" /><FilterField name="projectId" label="Project" /><FilterField name="state" choices={THREAD_STATES} /><FilterField name="order" choices={Object.keys(ORDERS)} /></>;
  const allList = () => (
    <>
      <div class="row filters">{common}</div>
      <details open={isAsked([...OF_CHATS, ...OF_THREADS])}>
        <summary>Filters of chats alone, and of threads alone</summary>
        <div class="row filters">{onlyChats}</div>
        <div class="row filters">{onlyThreads}</div>
      </details>
      <AllRuns of={key} lists={[
        ...(isAsked(OF_THREADS) ? [] : [(offset: number, limit: number) => chats(ofChats, offset, limit)]),
        ...(isAsked(OF_CHATS) ? [] : [(offset: number, limit: number) => threads(ofThreads, offset, limit)]),
      ]} />
    </>
  );
  const threadList = () => (
    <>
      <div class="row filters">{onlyThreads}{common}</div>
      <List label="Threads" columns={THREAD_COLUMNS} of={["threads", key]} href={(it) => href("threads", it._id)}
        empty="No threads match. Start one at an agent."
        load={(offset, limit, signal) => threads(ofThreads, offset, limit, signal)} />
    </>
  );
  const chatList = () => (
    <>
      <div class="row filters">{onlyChats}{common}</div>
      <List label="Chats" columns={CHAT_COLUMNS} of={["chats", key]} href={chatHref}
        empty="No chats match. Begin one in the playground of an assistant."
        load={(offset, limit, signal) => chats(ofChats, offset, limit, signal)} />
    </>
  );
  const tabs = [
    ...(canChats() && canThreads() ? [{ id: "all", title: "All", view: allList }] : []),
    ...(canChats() ? [{ id: "chats", title: "Chats", view: chatList }] : []),
    ...(canThreads() ? [{ id: "threads", title: "Threads", view: threadList }] : []),
  ];
  return (
    <>
      <header class="page"><h1>Runs</h1></header>
      <Tabs tabs={tabs} open={kind} set={setKind} />
    </>
  );
}

function DayField({ name }: { name: string }): JSX.Element {
  const [value, set] = useQuery(name);
  return <label>{name === "from" ? "From" : "To"} <input type="date" value={value} onChange={(event) => set(event.currentTarget.value)} /></label>;
}

/// One chat: what was said, and what it cost; it can be carried on.
export function ChatPage({ assistant, uid }: { assistant: string; uid: string }): JSX.Element {
  const path = `/v1/assistants/${encodeURIComponent(assistant)}/chats/${encodeURIComponent(uid)}`;
  const record = useLoad(async (signal) => {
    const [chat, of] = await Promise.all([get(path, { omitContent: true }, signal), get(`/v1/assistants/${encodeURIComponent(assistant)}`, {}, signal).catch(() => null)]);
    // An assistant that is gone has no project any more.
    await lookAt(of?.projectId);
    return { chat, project: of?.projectId };
  }, [path]);
  const chat = useChat(assistant, uid);
  const [tab, setTab] = useQuery("tab");
  const [wrong, setWrong] = useState<Error | null>(null);
  const [found, setFound] = useState<{ snippet: string; messageUid: string }[] | null>(null);
  if (!record.value) return record.error ? <Failure error={record.error} /> : <p role="status">Loading…</p>;
  const { chat: value, project } = record.value;
  const remove = () => call("DELETE", path).then(() => go(href("runs") + "?kind=chats"));
  const change = (body: object) => call("PATCH", path, { body }).then(record.again);
  const can = (method: string, what = "") => may("assistants:write", `${method} /v1/assistants/{identifier}/chats/{chatUid}${what}`);
  const search = (q: string) => (q ? get(path + "/search", { q }).then((got) => setFound(got.matches), setWrong) : setFound(null));
  return (
    <>
      <header class="page">
        <h1><a href={href("runs") + "?kind=chats"}>Chats</a> <span aria-hidden="true">/</span> {value.name || uid} <Badge of={chat.state?.status ?? value.status} /></h1>
        <div class="row">
          {mayIn(project) && can("PATCH") && <Act run={() => change({ archived: !value.archived })}>{value.archived ? "Bring back" : "Archive"}</Act>}
          {mayActIn(project, value.userUID) && can("POST", "/compact") && <Act run={() => call("POST", path + "/compact", { body: {} }).then(record.again)}>Compact</Act>}
          {mayIn(project) && can("DELETE") && <Act kind="danger" confirm="The chat and its messages are gone." run={remove}>Delete</Act>}
        </div>
      </header>
      <p class="id"><code>{uid}</code> <Copy text={uid} /> · <a href={href("assistants", assistant)}>{assistant}</a> · {tokens(value)} tokens · {cost(value)}{value.tenantId && <> · <a href={href("tenants", value.tenantId)}>{value.tenantId}</a></>}</p>
      <Tabs open={tab} set={setTab} tabs={[
        { id: "messages", title: "Messages", view: () => (
          <>
            <input type="search" aria-label="Search in this chat" placeholder="Search in this chat" onChange={(event) => search(event.currentTarget.value)} />
            <Failure error={wrong} />
            {found && <ul>{found.map((match) => <li key={match.messageUid}>{match.snippet}</li>)}{found.length === 0 && <li>Nothing found.</li>}</ul>}
            <ChatView chat={chat} base={`/v1/assistants/${encodeURIComponent(assistant)}`} project={project} />
            {mayActIn(project, value.userUID) && may("assistants:write", "POST /v1/assistants/{identifier}/messages") && <Composer chat={chat} />}
          </>
        ) },
        { id: "json", title: "JSON", view: () => <Json value={value} /> },
      ]} />
    </>
  );
}
