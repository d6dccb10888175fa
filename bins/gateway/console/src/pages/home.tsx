// Today at a glance, and curves over days, weeks and months.
import type { JSX } from "preact";
import { ApiError, get, type Query } from "../api.ts";
import { compact, day, localDay, money, number } from "../format.ts";
import { group, isOpen, page, type Record_ } from "../groups.ts";
import { Badge, Empty, Failure, Tabs, useLoad } from "../parts/basic.tsx";
import { Chart } from "../parts/chart.tsx";
import type { Page } from "../parts/list.tsx";
import { href, useQuery } from "../router.ts";
import { may, whenGone } from "../session.ts";
import { canChats, canThreads, chats, threads } from "./runs.tsx";

/// Chats that are read for the costs of assistants in no project; there is no sum of them.
const MOST_CHATS = 500;
const RANGES = { days: 30, weeks: 84, months: 365 } as const;
type Range = keyof typeof RANGES;

interface Costs {
  at: string[];
  cost: number[];
  tokens: number[];
  runs: number[];
}

/// What was spent in a year, a row for each day and whatever spent it.
interface Spent {
  rows: Record_[];
  isPart: boolean;
}

/// Projects, agents and assistants that are looked at; where there are more than a few, those in which something ran.
const MOST_RECORDS = 100;
const FEW = 20;
/// What was spent is asked for once a while, however often this page is opened.
const BRIEFLY_MS = 30_000;
/// Requests at once.
const AT_ONCE = 6;

async function newest(id: string): Promise<Page<Record_>> {
  const of = group(id)!;
  // What was spent by what is archived was spent.
  return isOpen(of) ? page(of, of.path, id === "assistants" ? {} : { archived: true }, 0, MOST_RECORDS) : { rows: [], total: 0 };
}

/// Answers of all, a few at a time; what is refused to this caller counts as nothing.
async function each(paths: string[], query: Query, signal: AbortSignal): Promise<Record_[]> {
  const rows: Record_[] = [];
  for (let at = 0; at < paths.length; at += AT_ONCE) {
    const answers = await Promise.all(paths.slice(at, at + AT_ONCE).map((path) => get<Record_[]>(path, query, signal).catch(refused([]))));
    rows.push(...answers.flat());
  }
  return rows;
}

/// What to take for an answer that is refused.
const refused = <T,>(instead: T) => (error: unknown): T => {
  if (error instanceof ApiError && error.status === 403) return instead;
  throw error;
};

/// What was spent, day by day: of projects, of agents in none, of chats of assistants in none.
async function readSpent(signal: AbortSignal): Promise<Spent> {
  const now = new Date();
  const from = new Date(now.getTime() - (RANGES.months - 1) * 86_400_000);
  const all = await Promise.all([newest("projects"), newest("agents"), newest("assistants")]);
  const [projects, agents, assistants] = all.map((page) => page.rows) as [Record_[], Record_[], Record_[]];
  const days = { startDate: day(from), endDate: day(now) };
  const rows: Record_[] = [];
  const ran = new Set<string>();
  // Chats of those are counted with their project; of one that was deleted nothing else tells.
  const projectOf = new Map(assistants.filter((it) => it.projectId).map((it) => [it.identifier, it.projectId]));
  let isPart = all.some((page) => page.total > MOST_RECORDS);
  for (const archived of [undefined, true]) {
    for (let offset = 0; offset < MOST_CHATS; offset += 100) {
      const got = await chats({ createdAfter: Date.parse(day(from)), archived }, offset, 100, signal).catch(refused({ rows: [], total: 0 } as Page<Record_>));
      for (const chat of got.rows) {
        const usage = chat.tokenUsage;
        ran.add(projectOf.get(chat.assistantSpecializationIdentifier) ?? "");
        if (!projectOf.has(chat.assistantSpecializationIdentifier) && usage) {
          rows.push({ date: day(new Date(chat.creationTimestampMs)), totalCost: usage.cost?.totalCost, secondaryCost: usage.secondaryCost, inputTokens: chat.inputTokens, outputTokens: chat.outputTokens, chatCount: 1 });
        }
      }
      if (offset + got.rows.length >= got.total) break;
      isPart ||= offset + 100 >= MOST_CHATS;
    }
  }
  const paid = [
    ...projects.map((it) => [it._id, `/v1/projects/${it._id}/costs/daily`]),
    ...agents.filter((it) => !it.projectId).map((it) => [it._id, `/v1/agents/agents/${it._id}/costs/daily`]),
  ];
  for (let offset = 0; offset < MOST_CHATS && paid.length > FEW && canThreads(); offset += 100) {
    const got = await threads({ startDate: from.getTime() }, offset, 100, signal).catch(refused({ rows: [], total: 0 } as Page<Record_>));
    for (const thread of got.rows) ran.add(thread.projectId ?? thread.agentId);
    if (offset + got.rows.length >= got.total) break;
  }
  const asked = paid.length <= FEW ? paid : paid.filter(([id]) => ran.has(id!));
  isPart ||= asked.length < paid.length;
  rows.push(...(await each(asked.map(([, path]) => path!), days, signal)));
  return { rows, isPart };
}

let known: { at: number; spent: Spent } | null = null;
whenGone(() => void (known = null));

/// What was spent, as it was a moment ago.
async function spent(signal: AbortSignal): Promise<Spent> {
  if (!known || Date.now() - known.at > BRIEFLY_MS) known = { at: Date.now(), spent: await readSpent(signal) };
  return known.spent;
}

/// The curves of a range.
function sums(rows: Record_[], range: Range): Costs {
  const now = new Date();
  const from = new Date(now.getTime() - (RANGES[range] - 1) * 86_400_000);
  const slot = (date: string): string => {
    if (range === "days") return date;
    if (range === "months") return date.slice(0, 7);
    const at = new Date(date);
    return day(new Date(at.getTime() - ((at.getUTCDay() + 6) % 7) * 86_400_000));
  };
  const sums = new Map<string, [number, number, number]>();
  for (let at = from.getTime(); at <= now.getTime(); at += 86_400_000) sums.set(slot(day(new Date(at))), [0, 0, 0]);
  for (const row of rows) {
    const sum = sums.get(slot(row.date));
    if (!sum) continue;
    sum[0] += (row.totalCost ?? 0) + (row.secondaryCost ?? 0);
    sum[1] += (row.inputTokens ?? 0) + (row.outputTokens ?? 0);
    sum[2] += (row.threadCount ?? 0) + (row.chatCount ?? 0);
  }
  const slots = [...sums.values()];
  return { at: [...sums.keys()], cost: slots.map((sum) => sum[0]), tokens: slots.map((sum) => sum[1]), runs: slots.map((sum) => sum[2]) };
}

/// A figure; none of what the caller may not see.
function Tile({ title, value, to, tone }: { title: string; value: string | number | null; to?: string; tone?: string }): JSX.Element | null {
  if (value === null) return null;
  const inside = <><span class="value">{typeof value === "number" ? number(value) : value}</span><span>{title}</span></>;
  return to ? <a class={`tile ${tone ?? ""}`} href={to}>{inside}</a> : <div class={`tile ${tone ?? ""}`}>{inside}</div>;
}

export function Home(): JSX.Element {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const [shown, setShown] = useQuery("by");
  const range = (shown in RANGES ? shown : "days") as Range;
  const counts = useLoad(async (signal) => {
    const total = (query: Record_) => (canThreads() ? threads(query, 0, 1, signal).then((got) => got.total) : Promise.resolve(null));
    const [chatsToday, threadsToday, failed, approvals, queued, processing] = await Promise.all([
      canChats() ? chats({ createdAfter: midnight }, 0, 1, signal).then((got) => got.total) : null,
      total({ startDate: midnight }), total({ startDate: midnight, state: "failed" }), total({ state: "paused_for_approval" }), total({ state: "queued" }), total({ state: "processing" }),
    ]);
    return { chatsToday, threadsToday, failed, approvals, queued, processing };
  }, []);
  const costs = useLoad(spent, []);
  const spends = ["projects", "agents", "assistants"].some((id) => isOpen(group(id)!));
  const curves = costs.value && sums(costs.value.rows, range);
  const models = useLoad((signal) => (may("models:read") ? get("/v1/models", {}, signal) : Promise.resolve(null)), []);
  const health = useLoad((signal) => get("/v1/health", {}, signal), []);
  const now = counts.value;
  const to = (state: string) => `${href("runs")}?kind=threads&state=${state}`;
  const today = costs.value && sums(costs.value.rows, "days");
  const least = costs.value?.isPart ? "at least " : "";
  const from = `&from=${localDay(new Date())}`;
  const charts = () => curves && (
    <>
      {costs.value!.isPart && <p role="note">Counted are the newest {MOST_RECORDS} projects, agents and assistants, of more than {FEW} those with runs among the newest {number(MOST_CHATS)}, and of the chats in no project the newest {number(MOST_CHATS)}.</p>}
      <div class="charts">
        <Chart title="Cost" at={curves.at} curves={[{ title: "Cost", values: curves.cost }]} format={money} />
        <Chart title="Tokens" at={curves.at} curves={[{ title: "Tokens", values: curves.tokens }]} format={compact} />
        <Chart title="Chats and threads" at={curves.at} curves={[{ title: "Runs", values: curves.runs }]} format={compact} />
      </div>
    </>
  );
  return (
    <>
      <header class="page"><h1>Home</h1>{health.value && <p>Version {health.value.version} <Badge of={health.value.status} /></p>}</header>
      <Failure error={counts.error} />
      {now && (
        <div class="tiles">
          <Tile title="chats today" value={now.chatsToday} to={`${href("runs")}?kind=chats${from}`} />
          <Tile title="threads today" value={now.threadsToday} to={`${href("runs")}?kind=threads${from}`} />
          <Tile title="threads failed today" value={now.failed} to={to("failed") + from} tone={now.failed ? "bad" : ""} />
          <Tile title="threads wait for approval" value={now.approvals} to={to("paused_for_approval")} tone={now.approvals ? "waits" : ""} />
          <Tile title="in the queue" value={now.queued} to={to("queued")} />
          <Tile title="at work" value={now.processing} to={to("processing")} />
          {today && spends && <Tile title="tokens today (UTC)" value={least + compact(today.tokens.at(-1) ?? 0)} />}
          {today && spends && <Tile title="spent today (UTC)" value={least + money(today.cost.at(-1))} />}
        </div>
      )}
      {now && (canChats() || canThreads()) && (now.chatsToday ?? 0) + (now.threadsToday ?? 0) === 0 && (
        <Empty>
          <p>Nothing has run today. {models.value?.default?.provider === "demo" && "The demo model answers until a provider is set, such as with OPENAI_API_KEY or ANTHROPIC_API_KEY."}</p>
          <p>
            {may("assistants:write", "POST /v1/assistants/{identifier}/messages") && <a class="button main" href={href("assistants", "default")}>Say hello to the built-in assistant</a>}{" "}
            {may("agents:write", "POST /v1/agents") && <a class="button" href={`${href("agents")}?new=1`}>Make an agent</a>}
          </p>
        </Empty>
      )}
      <Failure error={costs.error} />
      {spends && <Tabs open={range} set={setShown} tabs={(Object.keys(RANGES) as Range[]).map((id) => ({ id, title: `By ${id.slice(0, -1)}`, view: charts }))} />}
    </>
  );
}
