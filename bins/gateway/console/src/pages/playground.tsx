// A chat with an assistant, live: the reply grows, tools unfold, approvals are given, files are dropped.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, get, post, states, upload } from "../api.ts";
import type { Record_ } from "../groups.ts";
import { Act, Badge, Failure } from "../parts/basic.tsx";
import { href, useQuery } from "../router.ts";
import { may, mayIn } from "../session.ts";
import { Approvals, Conversation, type Decision, type Message } from "./conversation.tsx";

const OVER = ["completed", "error", "limit_exceeded"];
const isOver = (state: any): boolean => OVER.includes(state.status) && !state.queuedMessages;

/// Messages that the API gives at once.
const MOST_MESSAGES = 1000;

interface Upload {
  name: string;
  downloadUrl: string;
}

const store = (file: File): Promise<Upload> => upload("/v1/files/upload", file).then(({ downloadUrl }) => ({ name: file.name, downloadUrl }));

export interface Chat {
  uid: string | null;
  /// How often something was sent.
  turn: number;
  /// The server is out of reach; it is asked again.
  isCut: boolean;
  state: any;
  /// The stored messages, with their costs, once a turn is over.
  stored: Message[] | null;
  error: Error | null;
  send: (message: string, files: Upload[], more?: object) => Promise<void>;
  stop: () => Promise<unknown>;
  answer: (decision: Decision) => Promise<unknown>;
}

/// All messages of a chat, oldest first.
async function content(path: string, signal: AbortSignal): Promise<Message[]> {
  const messages: Message[] = [];
  // A page of large messages is shorter than it may be.
  for (;;) {
    const page = await get<Message[]>(path + "/content", { limit: MOST_MESSAGES, offset: messages.length }, signal);
    if (!page.length) return messages;
    messages.push(...page);
  }
}

/// A chat as it is, followed as long as somebody looks.
export function useChat(assistant: string, began: string | null): Chat {
  const [uid, setUid] = useState(began);
  const [state, setState] = useState<any>(null);
  const [stored, setStored] = useState<Message[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [turn, setTurn] = useState(0);
  const [isCut, setCut] = useState(false);
  const base = `/v1/assistants/${encodeURIComponent(assistant)}`;
  const path = `${base}/chats/${uid}`;
  useEffect(() => {
    if (!uid) return;
    const leaving = new AbortController();
    let shown = 0;
    const follow = async () => {
      let last: any = null;
      for await (const now of states(path + "/stream", isOver, leaving.signal, setCut)) {
        last = now;
        shown ||= requestAnimationFrame(() => {
          shown = 0;
          setState(last);
        });
      }
      const messages = await content(path, leaving.signal);
      cancelAnimationFrame(shown);
      setState(last);
      setStored(messages);
    };
    setError(null);
    setCut(false);
    follow().catch((error) => {
      if (leaving.signal.aborted) return;
      // A chat that never ran since it was stored has no state, only messages.
      get(path).then((chat) => (setStored(chat.chatContent), setState({ status: chat.status, chatHistory: chat.chatContent })), () => setError(error));
    });
    return () => {
      leaving.abort();
      cancelAnimationFrame(shown);
    };
  }, [uid, turn]);
  return {
    uid, turn, isCut, state, stored, error,
    send: async (message, files, more) => {
      const body = { message, files: files.length ? files : undefined, chatUid: uid ?? undefined, ...more };
      const sent = await post(base + "/messages?async=true", body);
      setStored(null);
      setUid(sent.chatUid);
      setTurn((turn) => turn + 1);
    },
    stop: () => post(path + "/stop"),
    answer: ({ approved }) => {
      const calls = state.pendingToolCalls.filter((call: any) => call.kind === "approval");
      const responses = calls.map((call: any) => ({ tool_call_id: call.id, content: approved.includes(call.id) ? "approved" : "rejected" }));
      return post(path + "/tool-response", { responses });
    },
  };
}

const can = (what: string): boolean => may("assistants:write", `POST /v1/assistants/{identifier}/chats/{chatUid}/${what}`);

/// Keeps the end in sight as long as the reader is there, and goes there when they send.
function useEnd(sent: number, grown: unknown): void {
  const follows = useRef(true);
  useEffect(() => {
    const moved = () => (follows.current = innerHeight + scrollY > document.documentElement.scrollHeight - 120);
    addEventListener("scroll", moved, { passive: true });
    return () => removeEventListener("scroll", moved);
  }, []);
  useLayoutEffect(() => void (follows.current = true), [sent]);
  useLayoutEffect(() => void (follows.current && scrollTo(0, document.documentElement.scrollHeight)), [sent, grown]);
}

/// A chat with what is decided of it; `project` is that of its assistant.
export function ChatView({ chat, base, project }: { chat: Chat; base: string; project?: string }): JSX.Element {
  const { state, stored, error } = chat;
  useEnd(chat.turn, stored ?? state);
  const pending = (state?.pendingToolCalls ?? []) as { id: string; kind: string; function: { name: string; arguments: string } }[];
  const approvals = pending.filter((call) => call.kind === "approval");
  const waiting: Message[] = (state?.pendingUserMessages ?? []).filter((message: Message) => !state.chatHistory.some((known: Message) => known.uid === message.uid));
  return (
    <>
      <Conversation messages={[...(stored ?? state?.chatHistory ?? []), ...waiting]} streaming={stored ? null : state?.streamingMessage} path={chat.uid && stored && can("feedback") ? `${base}/chats/${chat.uid}` : undefined} />
      {approvals.length > 0 && !stored && mayIn(project) && can("tool-response") && <Approvals calls={approvals} decide={chat.answer} />}
      {state?.handedOffSubThreadId && <p role="status">Another agent works on this: <a href={href("threads", state.handedOffSubThreadId)}>its thread</a>.</p>}
      {state?.error && <p class="failure" role="alert">{state.error.code}: {state.error.message}</p>}
      {state?.limitExceeded && <p class="failure" role="alert">{state.limitExceeded.message}</p>}
      {chat.isCut && <p role="status">The connection is lost. Trying again…</p>}
      <Failure error={error} />
    </>
  );
}

export function Composer({ chat, more, autoFocus }: { chat: Chat; more?: object; autoFocus?: boolean }): JSX.Element {
  const [text, setText] = useState("");
  const [files, setFiles] = useState<Upload[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const input = useRef<HTMLTextAreaElement>(null);
  useEffect(() => void (autoFocus && input.current?.focus()), []);
  const takesFiles = may("files:write", "POST /v1/files/upload");
  const add = async (list: FileList | null) => {
    if (!takesFiles) return;
    setError(null);
    for (const file of list ?? []) await store(file).then((stored) => setFiles((now) => [...now, stored]), setError);
  };
  const submit = async () => {
    if (busy || (!text.trim() && !files.length)) return;
    setBusy(true);
    setError(null);
    await chat.send(text, files, more).then(() => (setText((now) => (now.startsWith(text) ? now.slice(text.length) : now)), setFiles((now) => now.filter((file) => !files.includes(file)))), setError);
    setBusy(false);
    input.current?.focus();
  };
  const runs = chat.state && !isOver(chat.state) && !chat.stored;
  return (
    <div class="composer" onDragOver={(event) => event.preventDefault()} onDrop={(event) => (event.preventDefault(), add(event.dataTransfer?.files ?? null))}>
      <Failure error={error} />
      {files.length > 0 && <ul class="files">{files.map((file, i) => <li key={i}>{file.name} <button type="button" class="quiet" aria-label={`Leave out ${file.name}`} onClick={() => setFiles(files.filter((_, at) => at !== i))}>✕</button></li>)}</ul>}
      <textarea ref={input} aria-label="Message" rows={3} placeholder={`Message. Enter sends, Shift+Enter begins a line${takesFiles ? "; drop files here" : ""}.`} value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && (event.preventDefault(), void submit())} />
      <div class="row">
        <button type="button" class="main" disabled={busy} onClick={submit}>Send</button>
        {takesFiles && <label class="button">Add files<input type="file" multiple class="hidden" onChange={(event) => add(event.currentTarget.files)} /></label>}
        {runs && can("stop") && <Act run={chat.stop}>Stop</Act>}
        {chat.state && <Badge of={chat.state.status} />}
      </div>
    </div>
  );
}

export function Playground({ assistant }: { assistant: Record_ }): JSX.Element {
  const [uid, setUid] = useQuery("chat");
  const [count, setCount] = useState(0);
  return <One key={count} assistant={assistant} began={uid || null} made={setUid} anew={() => (setUid(""), setCount((count) => count + 1))} />;
}

function One({ assistant, began, made, anew }: { assistant: Record_; began: string | null; made: (uid: string) => void; anew: () => void }): JSX.Element {
  const chat = useChat(assistant.identifier, began);
  useEffect(() => void (chat.uid && chat.uid !== began && made(chat.uid)), [chat.uid]);
  const [tenant, setTenant] = useState("");
  return (
    <section aria-label="Playground">
      <div class="row">
        <button type="button" onClick={anew}>New chat</button>
        <label>Tenant <input value={tenant} size={14} placeholder="none" disabled={!!chat.uid} onInput={(event) => setTenant(event.currentTarget.value)} /></label>
      </div>
      <ChatView chat={chat} base={`/v1/assistants/${assistant.identifier}`} project={assistant.projectId} />
      <Composer chat={chat} more={tenant && !chat.uid ? { tenantId: tenant } : undefined} autoFocus />
    </section>
  );
}

/// Names the assistants that are made to try a prompt.
const TRIAL = "console-trial";
/// One that is so old belongs to nobody who compares now.
const OLD_MS = 3_600_000;

interface Trial {
  identifier: string;
  presets: string;
}

export const mayCompare = (): boolean => ["POST /v1/assistants", "PATCH /v1/assistants/{identifier}", "DELETE /v1/assistants/{identifier}", "POST /v1/assistants/{identifier}/messages"].every((call) => may("assistants:write", call));

/// The stored prompt and another side by side: their difference, and what each answers to the same message.
export function Compare({ assistant, save }: { assistant: Record_; save: (presets: string) => Promise<unknown> }): JSX.Element {
  const [draft, setDraft] = useState<string>(assistant.presets ?? "");
  const [trial, setTrial] = useState<Trial | null>(null);
  const [asked, setAsked] = useState<{ message: string; files: Upload[] } | null>(null);
  const current = useRef<Trial | null>(null);
  const stored = useChat(assistant.identifier, null);
  const end = () => current.current && call("DELETE", `/v1/assistants/${current.current.identifier}`).catch(() => undefined);
  // The draft runs as an assistant of its own, gone when another is tried or nobody compares any more; those that a
  // closed tab left go when the next one compares.
  useEffect(() => {
    const left = (all: Record_[]) => all.filter((it) => it.tags?.includes(TRIAL) && it.creationTimestampMs < Date.now() - OLD_MS).map((it) => call("DELETE", `/v1/assistants/${it.identifier}`));
    void get("/v1/assistants").then((all) => Promise.allSettled(left(all)), () => undefined);
    return () => void end();
  }, []);
  const send = async (message: string, files: Upload[]) => {
    if (trial?.presets !== draft) {
      const { _id, identifier, createdAt, ...settings } = assistant;
      const made = await post("/v1/assistants", { ...settings, name: `${assistant.name} (trial)`, presets: draft, tags: [TRIAL], accessConfiguration: { ...assistant.accessConfiguration, externalAccess: false } });
      void end();
      setTrial((current.current = { identifier: made.identifier, presets: draft }));
    }
    setAsked({ message, files });
    await stored.send(message, files);
  };
  const [left, right] = [(assistant.presets ?? "").split("\n") as string[], draft.split("\n")];
  return (
    <section aria-label="Compare">
      <div class="sides">
        <div>
          <h2>Stored prompt</h2>
          <pre class="prompt" tabIndex={0}>{left.map((line, i) => <div key={i} class={right.includes(line) ? undefined : "gone"}>{line || " "}</div>)}</pre>
        </div>
        <div>
          <h2><label htmlFor="draft">Other prompt</label></h2>
          <textarea id="draft" rows={Math.max(8, right.length + 1)} value={draft} onInput={(event) => setDraft(event.currentTarget.value)} />
          <pre class="prompt" role="region" tabIndex={0} aria-label="What differs">{right.map((line, i) => <div key={i} class={left.includes(line) ? undefined : "new"}>{line || " "}</div>)}</pre>
          <Act run={() => save(draft)} disabled={draft === assistant.presets}>Store the other prompt</Act>
        </div>
        <div><ChatView chat={stored} base={`/v1/assistants/${assistant.identifier}`} project={assistant.projectId} /></div>
        <div>{trial && <Tried key={trial.identifier} trial={trial} asked={asked} />}</div>
      </div>
      <Composer chat={{ ...stored, send }} />
    </section>
  );
}

/// What the other prompt answers to whatever is asked.
function Tried({ trial, asked }: { trial: Trial; asked: { message: string; files: Upload[] } | null }): JSX.Element {
  const chat = useChat(trial.identifier, null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => void (asked && chat.send(asked.message, asked.files).catch(setError)), [asked]);
  return <><ChatView chat={chat} base={`/v1/assistants/${trial.identifier}`} /><Failure error={error} /></>;
}
