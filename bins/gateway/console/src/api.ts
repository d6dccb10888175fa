// The public API, as any client calls it.
import { authorization, lost, whenGone } from "./session.ts";

export interface Issue {
  path: string;
  code: string;
  message: string;
}

export class ApiError extends Error {
  status: number;
  code: string;
  details: Record<string, any>;
  requestId: string;

  constructor(status: number, body: any, requestId: string) {
    super(body?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = body?.error ?? String(status);
    this.details = body?.details ?? {};
    this.requestId = body?.requestId ?? requestId;
  }

  get issues(): Issue[] {
    return this.details.issues ?? [];
  }
}

/// What an answer that is not 2xx says.
export const refusal = (answer: Response, body: any): ApiError => new ApiError(answer.status, body, answer.headers.get("X-Request-Id") ?? "");

/// A call that was made, for whoever wants to repeat it elsewhere.
export interface Made {
  method: string;
  path: string;
  body?: unknown;
  /// Name of the part that a file was sent as, and the other fields of its form.
  form?: { part: string; fields: Record<string, string> };
  /// The answer is server-sent events.
  streams: boolean;
  status: number;
  ms: number;
  requestId: string;
}

export const made: Made[] = [];
const MOST_MADE = 100;
/// Longer bodies are not kept.
const MOST_BODY = 65_536;
const SECRETS = /^(password|secret|token|key|clientSecret|refreshToken|appFields|accountFields|envVars|authenticationConfig|headers|customHeaders)$/;

/// A body as it may be shown to whoever looks over a shoulder.
function masked(body: unknown): unknown {
  if (body === undefined || body instanceof FormData) return undefined;
  const text = JSON.stringify(body, (name, value) => (SECRETS.test(name) && value ? "…" : value));
  return text.length > MOST_BODY ? "…" : JSON.parse(text);
}
let onMade: () => void = () => undefined;
whenGone(() => void (made.length = 0));
export const whenMade = (changed: () => void): void => void (onMade = changed);

export type Query = Record<string, string | number | boolean | null | undefined>;

export function withQuery(path: string, query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : path;
}

interface Options {
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/// Tries of what only reads and is told to slow down.
const TRIES = 4;

/// One request; whatever is not 2xx is thrown as an `ApiError`.
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  for (let left = TRIES; ; ) {
    const answer = await once(method, path, options);
    const wait = Number(answer.headers.get("Retry-After"));
    if (answer.status === 429 && method === "GET" && wait > 0 && wait <= 10 && --left > 0) {
      await answer.arrayBuffer();
      await new Promise((done) => setTimeout(done, wait * 1000));
      options.signal?.throwIfAborted();
      continue;
    }
    if (answer.ok) return answer;
    const error = refusal(answer, await answer.json().catch(() => null));
    if (answer.status === 401) lost(error.message);
    throw error;
  }
}

async function once(method: string, path: string, options: Options): Promise<Response> {
  const { body, headers, signal } = options;
  const isForm = body instanceof FormData;
  const began = performance.now();
  const answer = await fetch(path, {
    method,
    signal,
    headers: {
      Authorization: await authorization(),
      ...(body !== undefined && !isForm && { "Content-Type": "application/json" }),
      ...headers,
    },
    body: body === undefined ? undefined : isForm ? body : JSON.stringify(body),
  }).catch((error) => {
    throw signal?.aborted ? error : new ApiError(0, { message: "The server cannot be reached." }, "");
  });
  const requestId = answer.headers.get("X-Request-Id") ?? "";
  const ms = Math.round(performance.now() - began);
  const streams = answer.headers.get("Content-Type")?.startsWith("text/event-stream") ?? false;
  made.unshift({ method, path, body: masked(body), form: isForm ? parts(body) : undefined, streams, status: answer.status, ms, requestId });
  made.length = Math.min(made.length, MOST_MADE);
  onMade();
  return answer;
}

function parts(form: FormData): Made["form"] {
  const all = [...form.entries()];
  const fields = Object.fromEntries(all.filter((entry): entry is [string, string] => typeof entry[1] === "string"));
  return { part: all.find(([, value]) => typeof value !== "string")?.[0] ?? "file", fields };
}

export async function call<T = any>(method: string, path: string, options: Options = {}): Promise<T> {
  const answer = await send(method, path, options);
  const isJson = answer.headers.get("Content-Type")?.startsWith("application/json");
  return (isJson ? answer.json() : answer.text()) as Promise<T>;
}

export const get = <T = any>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  call<T>("GET", withQuery(path, query), { signal });

export const post = <T = any>(path: string, body: unknown = {}): Promise<T> => call<T>("POST", path, { body });

/// Sends a file as a part of a form, after its fields.
export function upload<T = any>(path: string, file: File, part = "file", fields: Record<string, string> = {}): Promise<T> {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  body.append(part, file);
  return call<T>("POST", path, { body });
}

/// Saves what an address answers as a file.
export async function download(path: string, name: string): Promise<void> {
  const address = URL.createObjectURL(await (await send("GET", path)).blob());
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

export interface Frame {
  event: string;
  data: any;
}

/// Frames of a stream of server-sent events, until the server closes it.
export async function* frames(answer: Response): AsyncGenerator<Frame> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop()!;
      for (const part of parts) {
        const field = (name: string) =>
          part.split("\n").filter((line) => line.startsWith(name + ":")).map((line) => line.slice(name.length + 1).trimStart());
        const data = field("data").join("\n");
        if (data) yield { event: field("event")[0] ?? "message", data: JSON.parse(data) };
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/// A state with what a frame says of it.
function changed(state: any, { event, data }: Frame): any {
  if (event === "snapshot") return data;
  if (event === "partial") return { ...state, ...data };
  const streaming = state.streamingMessage;
  const message = streaming.content.message + data.append;
  return { ...state, streamingMessage: { ...streaming, content: { ...streaming.content, message } } };
}

/// Whether it may be well if it is asked again.
const passes = (error: unknown): boolean => error instanceof ApiError && (error.status === 0 || error.status === 429 || error.status >= 500);

/// Waits until the page is in sight.
const shown = (signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    if (!document.hidden || signal.aborted) return done();
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
  });

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()));
  });

/// The state of a chat or thread as it changes; opened anew until it is over or `signal` says so, at once when the
/// stream ended as it should, ever later when it was cut, of which `onCut` is told.
export async function* states(path: string, isOver: (state: any) => boolean, signal: AbortSignal, onCut?: (isCut: boolean) => void): AsyncGenerator<any> {
  let state: any = null;
  let wait = 0;
  while (!signal.aborted) {
    let isCut = false;
    // Browsers hold few connections to one host: tabs that nobody sees leave theirs to others.
    await shown(signal);
    const hidden = new AbortController();
    const hide = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      for await (const frame of frames(await send("GET", path + "?partial=true", { signal: AbortSignal.any([signal, hidden.signal]) }))) {
        if ((isCut = frame.event === "reconnect")) break;
        if (wait) onCut?.(false);
        wait = 0;
        yield (state = changed(state, frame));
      }
    } catch (error) {
      if (hidden.signal.aborted && !signal.aborted) continue;
      if (signal.aborted || error instanceof ApiError && !passes(error)) {
        onCut?.(false);
        throw error;
      }
      isCut = true;
      onCut?.(true);
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (state && isOver(state)) return;
    if (isCut) await pause((wait = Math.min(30_000, wait * 2 || 1000)), signal);
  }
}
