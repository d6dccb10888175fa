// A thread as a timeline: what it did and waited for, one row each, on one scale of time; live while it works.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call, get, post, states } from "../api.ts";
import { duration, money, number, time } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Copy, Failure, Json, Tabs, useLoad } from "../parts/basic.tsx";
import { Markdown } from "../parts/markdown.tsx";
import { go, href, useQuery } from "../router.ts";
import { lookAt, may, mayActIn, mayIn } from "../session.ts";
import { Approvals, Conversation, type Message, ToolCall } from "./conversation.tsx";
import { cost } from "./runs.tsx";

const OVER = ["completed", "failed", "terminated", "approval_rejected", "guardrail_trigger", "limit_exceeded"];
const MOST_NESTED = 5;
/// Messages that the API gives at once.
const MOST_MESSAGES = 1000;

/// A row of the timeline.
interface Span {
  kind: "state" | "model" | "tool" | "user";
  title: string;
  from: number;
  to: number;
  cost?: number;
  view?: () => JSX.Element;
}

function spans(thread: Record_, messages: Message[], now: number): Span[] {
  const rows: Span[] = [];
  const changes = (thread.threadStatesChanges ?? []) as { state: string; timestamp: number; source: string }[];
  changes.forEach((change, i) => {
    const isOver = OVER.includes(change.state);
    const next = changes[i + 1]?.timestamp ?? (isOver ? change.timestamp : now);
    rows.push({ kind: "state", title: `${change.state.replace(/_/g, " ")} (${change.source})`, from: change.timestamp, to: next });
  });
  const results = new Map(messages.filter((message) => message.role === "tool").map((message) => [message.tool_call_id, message]));
  for (const message of messages) {
    const to = message.timestamp ?? now;
    if (message.role === "user" || message.role === "developer") {
      rows.push({ kind: "user", title: message.contentSource?.replace(/_/g, " ") ?? message.role, from: to, to, view: () => <Markdown text={message.content.message} /> });
    } else if (message.role === "assistant") {
      const view = () => <Conversation messages={[{ ...message, tool_calls: undefined }]} />;
      rows.push({ kind: "model", title: message.messageTokenUsage?.model ?? "model", from: to - (message.latencyMs ?? 0), to, cost: message.messageCost?.totalCost, view });
      for (const asked of message.tool_calls ?? []) {
        const result = results.get(asked.id);
        const end = result?.timestamp ?? now;
        const begin = result?.latencyMs !== undefined ? end - result.latencyMs : to;
        rows.push({ kind: "tool", title: asked.function.name, from: begin, to: end, view: () => <ToolCall name={asked.function.name} asked={asked.function.arguments} result={result?.content.message} latencyMs={result?.latencyMs} open /> });
      }
    }
  }
  return rows.sort((a, b) => a.from - b.from || (a.kind === "state" ? -1 : 1));
}

function Row({ span, from, whole }: { span: Span; from: number; whole: number }): JSX.Element {
  const [open, setOpen] = useState(false);
  const style = { left: `${((span.from - from) / whole) * 100}%`, width: `${Math.max(0.4, ((span.to - span.from) / whole) * 100)}%` };
  const length = span.to > span.from ? duration(span.to - span.from) : "";
  return (
    <li class={`span ${span.kind}`}>
      <div class="line">
        {span.view
          ? <button type="button" class="quiet title" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} {span.title}</button>
          : <span class="title">{span.title}</span>}
        <span class="scale" title={time(span.from)}><span class="bar" style={style} /></span>
        <span class="length">{length}</span>
        <span class="cost">{span.cost ? money(span.cost) : ""}</span>
      </div>
      {open && <div class="inside">{span.view!()}</div>}
    </li>
  );
}

function Timeline({ thread, messages, depth = 0 }: { thread: Record_; messages: Message[]; depth?: number }): JSX.Element {
  const isOver = OVER.includes(thread.state);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (isOver) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [isOver]);
  const end = isOver ? (thread.finishTimestampMs ?? thread.lastEditTimestampMs) : now;
  const rows = spans(thread, messages, end);
  const from = Math.min(thread.creationTimestampMs, ...rows.map((row) => row.from));
  const whole = Math.max(1, Math.max(end, ...rows.map((row) => row.to)) - from);
  return (
    <div class="timeline">
      <p class="scale-of">{time(from)} · {duration(whole)}</p>
      <ol>{rows.map((row, i) => <Row key={`${row.kind}-${row.from}-${i}`} span={row} from={from} whole={whole} />)}</ol>
      {depth < MOST_NESTED && thread.handOffSubThreadIds?.map((id: string) => <Nested key={id} id={id} depth={depth + 1} />)}
    </div>
  );
}

/// A sub-agent's thread, below the one that started it.
function Nested({ id, depth }: { id: string; depth: number }): JSX.Element {
  const [open, setOpen] = useState(false);
  const loaded = useLoad((signal) => (open ? get(`/v1/agents/threads/${id}`, {}, signal) : Promise.resolve(null)), [id, open]);
  const isLive = open && loaded.value && !OVER.includes(loaded.value.state);
  useEffect(() => {
    if (!isLive) return;
    const timer = setInterval(loaded.again, 2000);
    return () => clearInterval(timer);
  }, [isLive]);
  return (
    <details class="nested" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Sub-agent {loaded.value?.name || id} {loaded.value && <Badge of={loaded.value.state} />}</summary>
      <p><a href={href("threads", id)}>Open its thread</a></p>
      <Failure error={loaded.error} />
      {loaded.value && <Timeline thread={loaded.value} messages={loaded.value.threadContent ?? []} depth={depth} />}
    </details>
  );
}

const can = (what: string): boolean => may("agents:write", `POST /v1/agents/threads/{threadId}/${what}`);

function Explanation({ id }: { id: string }): JSX.Element {
  const [text, setText] = useState<string | null>(null);
  return text === null ? <Act kind="main" run={() => get<string>(`/v1/agents/threads/${id}/explain`).then(setText)}>Explain this thread</Act> : <Markdown text={text} />;
}

function Evaluations({ id, isOver, acts }: { id: string; isOver: boolean; acts: boolean }): JSX.Element {
  const path = `/v1/agents/threads/${id}`;
  const loaded = useLoad((signal) => get(path + "/evaluations", { limit: 20 }, signal), [id]);
  const all = (loaded.value?.evaluations ?? []) as Record_[];
  return (
    <>
      {acts && can("evaluate") && (isOver ? <Act kind="main" run={() => post(path + "/evaluate").then(loaded.again)}>Evaluate</Act> : <p>A thread can be evaluated when it is over.</p>)}
      <Failure error={loaded.error} />
      {all.map((evaluation) => (
        <article class="card" key={evaluation._id}>
          <h2>{evaluation.overallScore ?? "–"} of 10 <Badge of={evaluation.passed === undefined ? evaluation.status : evaluation.passed ? "passed" : "failed"} /></h2>
          <p>{evaluation.generalFeedback}</p>
          {evaluation.error && <p class="failure">{evaluation.error.message}</p>}
          <dl>{Object.entries(evaluation.criteria ?? {}).map(([name, criterion]: [string, any]) => <div key={name}><dt>{name}: {criterion.score}</dt><dd>{criterion.reasoning}{criterion.observations?.length > 0 && <ul>{criterion.observations.map((text: string) => <li key={text}>{text}</li>)}</ul>}</dd></div>)}</dl>
          <small>{evaluation.source} · {evaluation.evaluationModel} · {time(evaluation.evaluationTimestampMs)}</small>
        </article>
      ))}
    </>
  );
}

/// A thread with all of its messages, however many pages they take.
async function whole(path: string, signal: AbortSignal): Promise<Record_> {
  const thread = await get<Record_>(path, { withTasks: true, messageLimit: MOST_MESSAGES }, signal);
  for (let more = thread.threadContent ?? []; more.length; ) {
    const messageOffset = thread.threadContent.length;
    more = (await get<Record_>(path, { messageLimit: MOST_MESSAGES, messageOffset }, signal)).threadContent ?? [];
    thread.threadContent.push(...more);
  }
  await lookAt(thread.projectId);
  return thread;
}

export function ThreadPage({ id }: { id: string }): JSX.Element {
  const path = `/v1/agents/threads/${encodeURIComponent(id)}`;
  const loaded = useLoad((signal) => whole(path, signal), [path]);
  const [live, setLive] = useState<any>(null);
  const [cut, setCut] = useState<Error | null>(null);
  const [isAway, setIsAway] = useState(false);
  const [turn, setTurn] = useState(0);
  const [tab, setTab] = useQuery("tab");
  const state = live?.state ?? loaded.value?.state;
  const isOver = OVER.includes(state);
  // What is followed now may be over, and what was done may have begun it anew.
  const again = () => {
    setLive(null);
    setCut(null);
    setTurn((turn) => turn + 1);
    loaded.again();
  };
  useEffect(() => {
    if (!loaded.value || isOver) return;
    const leaving = new AbortController();
    let seen = "";
    const follow = async () => {
      for await (const now of states(path + "/stream", (state) => OVER.includes(state.state), leaving.signal, setIsAway)) {
        setLive(now);
        // Costs, durations and changes of state are in the record.
        const marks = `${now.state} ${now.chatHistory.length}`;
        if (seen && marks !== seen) loaded.again();
        seen = marks;
      }
      loaded.again();
    };
    follow().catch((error) => leaving.signal.aborted || setCut(error));
    return () => {
      leaving.abort();
      setIsAway(false);
    };
  }, [path, !!loaded.value, isOver, turn]);
  // One that is over may have been spoken to from elsewhere.
  useEffect(() => {
    const look = () => void (isOver && !document.hidden && again());
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, [path, isOver]);
  if (!loaded.value) return loaded.error ? <Failure error={loaded.error} /> : <p role="status">Loading…</p>;
  const thread = loaded.value as Record_;
  const decides = mayIn(thread.projectId);
  const acts = mayActIn(thread.projectId, thread.userUID);
  const stored = (thread.threadContent ?? []) as Message[];
  const messages = [...stored, ...((live?.chatHistory ?? []) as Message[]).filter((message) => !stored.some((known) => known.uid === message.uid))];
  const act = (what: string, body: object = {}) => post(`${path}/${what}`, body).then(again);
  const approval = live && !isOver ? live.pendingApproval : thread.pendingApproval;
  const remove = () => call("DELETE", path).then(() => go(href("runs") + "?kind=threads"));
  return (
    <>
      <header class="page">
        <h1><a href={href("runs") + "?kind=threads"}>Threads</a> <span aria-hidden="true">/</span> {thread.name || id} <Badge of={state} /></h1>
        <div class="row">
          {thread.pauseRequested && <span role="status">Pauses after this step</span>}
          {acts && can("pause") && !isOver && !thread.pauseRequested && !["paused", "paused_for_approval"].includes(state) && <Act run={() => act("pause")}>Pause</Act>}
          {acts && can("resume") && (thread.pauseRequested || ["paused", "paused_for_resume"].includes(state)) && <Act kind="main" run={() => act("resume")}>Resume</Act>}
          {decides && can("complete") && !isOver && <Act run={() => act("complete", { state: "completed" })}>Complete</Act>}
          {decides && can("complete") && !isOver && <Act kind="danger" confirm="What it works on is given up." run={() => act("complete", { state: "terminated" })}>Terminate</Act>}
          {decides && may("agents:write", "DELETE /v1/agents/threads/{threadId}") && isOver && <Act kind="danger" confirm="The thread and its messages are gone." run={remove}>Delete</Act>}
        </div>
      </header>
      <p class="id"><code>{id}</code> <Copy text={id} /> · <a href={href("agents", thread.agentId)}>agent</a> · {number(thread.totalTokens)} tokens · {cost(thread)} · worked {duration(thread.duration) || "0 ms"}
        {thread.tenantId && <> · <a href={href("tenants", thread.tenantId)}>{thread.tenantId}</a></>}{thread.parentThreadId && <> · <a href={href("threads", thread.parentThreadId)}>started by another thread</a></>}</p>
      {(thread.finishReason || thread.pausedReason || thread.queuedReason) && <p class="reason">{thread.finishReason ?? thread.pausedReason ?? thread.queuedReason}</p>}
      {isAway && <p role="status">The connection is lost. Trying again…</p>}
      <Failure error={cut ?? loaded.error} />
      {approval && decides && can("approval") && <Approvals calls={approval.toolCalls} hears decide={({ approved, ...more }) => act("approval", { approved: approved.length > 0, toolCallIds: approved.length ? approved : undefined, uid: approval.uid, ...more })} />}
      <Tabs open={tab} set={setTab} tabs={[
        { id: "timeline", title: "Timeline", view: () => <Timeline thread={{ ...thread, state }} messages={messages} /> },
        { id: "messages", title: "Messages", view: () => <><Conversation messages={messages} streaming={isOver ? null : live?.streamingMessage} path={acts && can("feedback") ? path : undefined} />{acts && can("messages") && state !== "paused_for_approval" && <Say path={path} done={again} />}</> },
        { id: "tasks", title: "Tasks", view: () => (thread.tasks?.length ? <ul>{thread.tasks.map((task: Record_) => <li key={task._id}><input type="checkbox" disabled checked={task.completed} aria-label={task.title} /> {task.title} <small>{task.description}</small></li>)}</ul> : <p>The agent keeps no list of tasks here.</p>) },
        { id: "explain", title: "Explanation", view: () => <Explanation id={id} /> },
        { id: "evaluations", title: "Evaluations", view: () => <Evaluations id={id} isOver={isOver} acts={acts} /> },
        { id: "json", title: "JSON", view: () => <Json value={thread} /> },
      ]} />
    </>
  );
}

function Say({ path, done }: { path: string; done: () => void }): JSX.Element {
  const [text, setText] = useState("");
  return (
    <div class="composer">
      <textarea aria-label="Message to the thread" rows={2} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <div class="row"><Act kind="main" disabled={!text.trim()} run={() => post(path + "/messages", { message: text }).then(() => (setText(""), done()))}>Send</Act></div>
    </div>
  );
}
