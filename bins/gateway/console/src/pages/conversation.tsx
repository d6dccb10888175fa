// Messages of a chat or thread, as they grow.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api.ts";
import { duration, money, number, pretty } from "../format.ts";
import { Act, Badge, Failure, Json, useLoad } from "../parts/basic.tsx";
import { Markdown } from "../parts/markdown.tsx";

export interface Message {
  uid: string;
  role: string;
  content: { message: string; data?: unknown; files?: { name: string; downloadUrl: string; fileType?: string }[] };
  timestamp?: number;
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
  contentSource?: string;
  latencyMs?: number;
  messageCost?: { totalCost: number };
  messageTokenUsage?: { inputTokens: number; outputTokens: number; model: string };
}

/// What a tool was asked and what it answered.
export function ToolCall({ name, asked, result, latencyMs, open }: { name: string; asked: string; result?: string; latencyMs?: number; open?: boolean }): JSX.Element {
  const failed = result !== undefined && /^\s*\{\s*"error"/.test(result);
  return (
    <details class="tool" open={open}>
      <summary><span aria-hidden="true">⚙</span> <code>{name}</code> <Badge of={result === undefined ? "pending" : failed ? "failed" : "done"} /> {duration(latencyMs)}</summary>
      <p class="label">Arguments</p>
      <Json value={pretty(asked)} />
      {result !== undefined && <><p class="label">Result</p><Json value={pretty(result)} /></>}
    </details>
  );
}

function Files({ of }: { of: Message }): JSX.Element | null {
  const files = of.content.files ?? [];
  if (!files.length) return null;
  return <ul class="files">{files.map((file, i) => <li key={i}><a href={file.downloadUrl} target="_blank" rel="noopener noreferrer">{file.name}</a></li>)}</ul>;
}

interface Given {
  requestId: string;
  feedback: boolean;
  feedbackComment?: string | null;
  feedbackData?: unknown;
}

function Thumbs({ path, uid, before }: { path: string; uid: string; before?: Given }): JSX.Element {
  const [now, setNow] = useState<Given | null>(null);
  const [why, setWhy] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const given = now ?? before;
  // There is one opinion of a message: what of the former one is not changed goes on to count.
  const give = (feedback: boolean) => post<Given>(path + "/feedback", { messageId: uid, feedback, feedbackComment: why ?? given?.feedbackComment ?? undefined, feedbackData: given?.feedbackData ?? undefined }).then(setNow, setError);
  return (
    <span class="thumbs">
      <button type="button" class="quiet" title="Good answer" aria-pressed={given?.feedback === true} onClick={() => give(true)}>Good</button>
      <button type="button" class="quiet" title="Bad answer" aria-pressed={given?.feedback === false} onClick={() => give(false)}>Bad</button>
      {given && <input aria-label="Why it is so" placeholder="Why?" maxLength={4000} value={why ?? given.feedbackComment ?? ""} onInput={(event) => setWhy(event.currentTarget.value)} onChange={() => give(given.feedback)} />}
      <Failure error={error} />
    </span>
  );
}

interface Props {
  messages: Message[];
  streaming?: Message | null;
  /// Where feedback goes; none = it is not asked for.
  path?: string;
}

export function Conversation({ messages, streaming, path }: Props): JSX.Element {
  const results = new Map(messages.filter((message) => message.role === "tool").map((message) => [message.tool_call_id, message]));
  // What was said of the messages before.
  const feedback = useLoad((signal) => (path ? get<Given[]>(path + "/feedback", {}, signal) : Promise.resolve([])), [path]);
  const all = streaming && !messages.some((message) => message.uid === streaming.uid) ? [...messages, streaming] : messages;
  return (
    <ol class="conversation" aria-live="polite" aria-busy={!!streaming}>
      {all.filter((message) => message.role !== "tool").map((message) => {
        const isOwn = message.role === "assistant" && message !== streaming;
        return (
          <li key={message.uid} class={`message ${message.role}`}>
            <div class="who">{message.role === "user" ? "User" : message.role === "assistant" ? "Assistant" : message.role}{message.contentSource && message.contentSource !== "user" && <small> · {message.contentSource.replace(/_/g, " ")}</small>}</div>
            {message.content.message && <Markdown text={message.content.message} />}
            <Files of={message} />
            {message.tool_calls?.map((call) => {
              const result = results.get(call.id);
              return <ToolCall key={call.id} name={call.function.name} asked={call.function.arguments} result={result?.content.message} latencyMs={result?.latencyMs} />;
            })}
            {isOwn && (
              <div class="about">
                {message.latencyMs !== undefined && <span>{duration(message.latencyMs)}</span>}
                {message.messageTokenUsage && <span>{number(message.messageTokenUsage.inputTokens)} in, {number(message.messageTokenUsage.outputTokens)} out · {message.messageTokenUsage.model}</span>}
                {message.messageCost && <span>{money(message.messageCost.totalCost)}</span>}
                {path && message.content.message && <Thumbs path={path} uid={message.uid} before={feedback.value?.find((of) => of.requestId === message.uid)} />}
              </div>
            )}
          </li>
        );
      })}
    </ol>
  );
}

/// What a person decides on calls: those that may be made, a word about it, and whether the agent goes on without the others.
export interface Decision {
  approved: string[];
  message?: string;
  retry?: boolean;
}

interface ApprovalProps {
  calls: { id: string; function: { name: string; arguments: string } }[];
  decide: (decision: Decision) => Promise<unknown>;
  /// Whether a word about it is heard.
  hears?: boolean;
}

/// Calls that wait for a person.
export function Approvals({ calls, decide, hears }: ApprovalProps): JSX.Element {
  const [refused, setRefused] = useState<string[]>([]);
  const [said, setSaid] = useState("");
  const card = useRef<HTMLElement>(null);
  useEffect(() => card.current?.scrollIntoView({ block: "nearest" }), []);
  const approved = calls.map((call) => call.id).filter((id) => !refused.includes(id));
  const message = said.trim() || undefined;
  const turn = (id: string, on: boolean) => setRefused((now) => (on ? now.filter((other) => other !== id) : [...now, id]));
  return (
    <section class="approval" aria-label="Approval" ref={card}>
      <h2>Waits for your approval</h2>
      {calls.map((call) => (
        <div key={call.id}>
          {calls.length > 1 && <label class="check"><input type="checkbox" checked={!refused.includes(call.id)} onChange={(event) => turn(call.id, event.currentTarget.checked)} /> Approve <code>{call.function.name}</code></label>}
          <ToolCall name={call.function.name} asked={call.function.arguments} open />
        </div>
      ))}
      {hears && <textarea aria-label="A word to the agent" placeholder="A word to the agent" rows={2} value={said} onInput={(event) => setSaid(event.currentTarget.value)} />}
      <div class="row">
        <Act kind="main" disabled={!approved.length} run={() => decide({ approved, message })}>{approved.length < calls.length ? `Approve ${approved.length} of ${calls.length}` : "Approve"}</Act>
        <Act kind="danger" run={() => decide({ approved: [], message })}>Reject</Act>
        {hears && <Act disabled={!message} run={() => decide({ approved: [], message, retry: true })}>Reject and go on</Act>}
      </div>
    </section>
  );
}
