// Messages of a chat or thread, as they grow.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../api.ts";
import { duration, money, number, pretty } from "../format.ts";
import { Act, Badge, Failure, Json } from "../parts/basic.tsx";
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

function Thumbs({ path, uid }: { path: string; uid: string }): JSX.Element {
  const [given, setGiven] = useState<boolean | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const give = (feedback: boolean) => () => post(path + "/feedback", { messageId: uid, feedback }).then(() => setGiven(feedback), setError);
  return (
    <span class="thumbs">
      <button type="button" class="quiet" title="Good answer" aria-pressed={given === true} onClick={give(true)}>Good</button>
      <button type="button" class="quiet" title="Bad answer" aria-pressed={given === false} onClick={give(false)}>Bad</button>
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
                {path && message.content.message && <Thumbs path={path} uid={message.uid} />}
              </div>
            )}
          </li>
        );
      })}
    </ol>
  );
}

/// Calls that wait for a person.
export function Approvals({ calls, decide }: { calls: { id: string; function: { name: string; arguments: string } }[]; decide: (yes: boolean) => Promise<unknown> }): JSX.Element {
  const card = useRef<HTMLElement>(null);
  useEffect(() => card.current?.scrollIntoView({ block: "nearest" }), []);
  return (
    <section class="approval" aria-label="Approval" ref={card}>
      <h2>Waits for your approval</h2>
      {calls.map((call) => <ToolCall key={call.id} name={call.function.name} asked={call.function.arguments} open />)}
      <div class="row">
        <Act kind="main" run={() => decide(true)}>Approve</Act>
        <Act kind="danger" run={() => decide(false)}>Reject</Act>
      </div>
    </section>
  );
}
