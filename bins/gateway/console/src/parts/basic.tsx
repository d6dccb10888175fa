// Small things that every page uses.
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { ago, json, time } from "../format.ts";

/// What is loaded, and what went wrong; `again` loads it once more.
interface Loaded<T> {
  value: T | null;
  error: Error | null;
  again: () => void;
}

export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, of: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ value: T | null; error: Error | null }>({ value: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const leaving = new AbortController();
    load(leaving.signal).then(
      (value) => leaving.signal.aborted || setState({ value, error: null }),
      (error) => leaving.signal.aborted || setState((now) => ({ value: now.value, error })),
    );
    return () => leaving.abort();
  }, [...of, turn]);
  return { ...state, again: useCallback(() => setTurn((turn) => turn + 1), []) };
}

export function Failure({ error }: { error: Error | null }): JSX.Element | null {
  if (!error) return null;
  const api = error instanceof ApiError ? error : null;
  return (
    <div class="failure" role="alert">
      <strong>{error.message}</strong>
      {api && api.issues.length > 0 && <ul>{api.issues.map((issue, i) => <li key={i}>{issue.message}</li>)}</ul>}
      {api?.requestId && <small>{api.code} · request <code>{api.requestId}</code></small>}
    </div>
  );
}

/// A button for something that takes a while: it waits, and says what went wrong.
export function Act(props: { run: () => Promise<unknown>; children: ComponentChildren; kind?: string; confirm?: string; disabled?: boolean; row?: boolean }): JSX.Element {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const run = async () => {
    if (busy || (props.confirm && !(await ask(props.confirm)))) return;
    setBusy(true);
    setError(null);
    await props.run().catch(setError);
    setBusy(false);
  };
  return (
    <>
      <button type="button" class={props.kind} disabled={props.disabled} aria-disabled={busy} aria-busy={busy} onClick={run}>{props.children}</button>
      {error && (props.row ? <Dialog title="It was not done" close={() => setError(null)}><Failure error={error} /></Dialog> : <Failure error={error} />)}
    </>
  );
}

let asking: (question: { text: string; answer: (yes: boolean) => void }) => void = () => undefined;
const ask = (text: string): Promise<boolean> => new Promise((answer) => asking({ text, answer }));

/// Asks before what cannot be taken back.
export function Confirm(): JSX.Element | null {
  const [question, setQuestion] = useState<Parameters<typeof asking>[0] | null>(null);
  asking = setQuestion;
  if (!question) return null;
  const answer = (yes: boolean) => {
    setQuestion(null);
    question.answer(yes);
  };
  return (
    <Dialog title="Are you sure?" close={() => answer(false)}>
      <p>{question.text}</p>
      <div class="row">
        <button type="button" class="danger" onClick={() => answer(true)}>Yes</button>
        <button type="button" onClick={() => answer(false)}>No, keep it</button>
      </div>
    </Dialog>
  );
}

/// `stays`: it takes its button, or Escape, to close it; a press beside it does not.
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren; wide?: boolean; stays?: boolean }): JSX.Element {
  const isBeside = (event: PointerEvent) => {
    const { left, right, top, bottom } = dialog.current!.getBoundingClientRect();
    return event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
  };
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  const [isTyped, setTyped] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const leave = async () => (!isTyped || (await ask("What you typed is lost."))) && props.close();
  return (
    <dialog ref={dialog} class={props.wide ? "wide" : undefined} aria-labelledby={title} onClose={props.close} onInput={(event) => (event.target as Element).closest(".form") && setTyped(true)}
      onCancel={(event) => event.target === dialog.current && isTyped && (event.preventDefault(), void leave())}
      onPointerDown={(event) => !props.stays && event.target === dialog.current && isBeside(event) && void leave()}>
      <header><h2 id={title}>{props.title}</h2><button type="button" class="quiet" aria-label="Close" onClick={leave}>✕</button></header>
      {props.children}
    </dialog>
  );
}

export function Empty({ children }: { children: ComponentChildren }): JSX.Element {
  return <div class="empty">{children}</div>;
}

const TONES: Record<string, string> = {
  good: "ok active ready completed delivered running done connected accepted enabled started approved",
  bad: "failed error down needs_reauth terminated expired disabled rejected revoked blocked approval_rejected limit_exceeded guardrail_trigger",
  busy: "processing queued pending creating saving stopping buffering handed_off under_construction",
  waits: "paused paused_for_approval paused_for_resume waiting_for_response waiting_for_tool_response degraded idle inactive",
};

export function Badge({ of }: { of: unknown }): JSX.Element | null {
  if (of === undefined || of === null || of === "") return null;
  const text = String(of);
  const tone = Object.keys(TONES).find((tone) => TONES[tone]!.split(" ").includes(text.toLowerCase())) ?? "plain";
  return <span class={`badge ${tone}`}>{text.replace(/_/g, " ")}</span>;
}

export function When({ at }: { at: number | string | undefined | null }): JSX.Element | null {
  if (!at) return null;
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? <span>{at}</span> : <time dateTime={date.toISOString()} title={time(at)}>{ago(at)}</time>;
}

export function Json({ value }: { value: unknown }): JSX.Element {
  return <pre class="json" tabIndex={0}>{typeof value === "string" ? value : json(value)}</pre>;
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  const [done, setDone] = useState(false);
  if (!navigator.clipboard) return <></>;
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone(true), () => setDone(false));
  return <button type="button" class="quiet" onClick={copy}>{done ? "Copied" : label}</button>;
}

export interface Tab {
  id: string;
  title: string;
  view: () => ComponentChildren;
}

/// Tabs, of which the address says the open one.
export function Tabs({ tabs, open, set }: { tabs: Tab[]; open: string; set: (id: string) => void }): JSX.Element {
  const current = tabs.find((tab) => tab.id === open) ?? tabs[0]!;
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const next = tabs[(tabs.indexOf(current) + step + tabs.length) % tabs.length]!;
    set(next.id);
    (event.currentTarget as HTMLElement).querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label="Parts" onKeyDown={move}>
        {tabs.map((tab) => (
          <button key={tab.id} type="button" role="tab" id={`tab-${tab.id}`} data-tab={tab.id} aria-selected={tab === current}
            aria-controls="tab-panel" tabIndex={tab === current ? 0 : -1} onClick={() => set(tab.id)}>{tab.title}</button>
        ))}
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${current.id}`} key={current.id}>{current.view()}</div>
    </>
  );
}
