// The frame: who is here, where they are, and what is there.
import { Component, render, type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./style.css";
import { call } from "./api.ts";
import { callsOf, FIRST_CALLS, group, GROUPS, type Group, isOpen, type Record_ } from "./groups.ts";
import { Confirm, Failure, type Tab, useLoad } from "./parts/basic.tsx";
import { Calls } from "./parts/calls.tsx";
import { type Command, Palette } from "./parts/palette.tsx";
import { Accounts } from "./pages/accounts.tsx";
import { Costs, Judging, Start, Threads } from "./pages/agents.tsx";
import { Connect, DefaultSecret, mayConnect, MyTools, Preview } from "./pages/connect.tsx";
import { Home } from "./pages/home.tsx";
import { DocumentText, ImportSkill, Search, SkillFiles } from "./pages/knowledge.tsx";
import { Memory } from "./pages/memory.tsx";
import { LogIn } from "./pages/login.tsx";
import { Compare, mayCompare, Playground } from "./pages/playground.tsx";
import { creates, ListPage, RecordPage } from "./pages/resource.tsx";
import { canChats, canThreads, CHAT_COLUMNS, chatHref, ChatPage, chats, Runs } from "./pages/runs.tsx";
import { Speech } from "./pages/speech.tsx";
import { mayWorkAt, Terminal } from "./pages/terminal.tsx";
import { ThreadPage } from "./pages/thread.tsx";
import { ImportApi, Tools } from "./pages/tools.tsx";
import { Quotas } from "./pages/usage.tsx";
import { List } from "./parts/list.tsx";
import { go, href, useRoute } from "./router.ts";
import { allTried, begin, identity, logOut, may, mayIn, onIdentity, tryOut } from "./session.ts";

const SECTIONS = ["Build", "Knowledge", "Connect", "Access"] as const;

/// Tabs that only records of one group have; those before its settings.
const FIRST: Record<string, (record: Record_, again: () => void) => Tab[]> = {
  assistants: (it) => [
    ...(may("assistants:write", "POST /v1/assistants/{identifier}/messages") ? [{ id: "playground", title: "Playground", view: () => <Playground assistant={it} /> }] : []),
    ...(canChats() ? [{ id: "chats", title: "Chats", view: () => (
      <List label="Chats" columns={CHAT_COLUMNS} of={[it.identifier]} href={chatHref} empty="No chats yet. Begin one in the playground."
        load={(offset, limit, signal) => chats({ assistantSpecializationIdentifier: it.identifier }, offset, limit, signal)} />
    ) }] : []),
  ],
  agents: (it) => [
    ...(canThreads() ? [{ id: "threads", title: "Threads", view: () => <Threads agent={it} /> }] : []),
    ...(may("agents:write", "POST /v1/agents/{agentId}/threads") ? [{ id: "start", title: "Start", view: () => <Start agent={it} /> }] : []),
    ...(may("agents:read", "GET /v1/agents/agents/{agentId}/costs/daily") ? [{ id: "costs", title: "Costs", view: () => <Costs path={`/v1/agents/agents/${it._id}`} /> }] : []),
  ],
  "tool-servers": (it) => (may("tool-servers:read", "GET /v1/tool-servers/{toolServerId}/tools") ? [{ id: "tools", title: "Tools", view: () => <Tools server={it} /> }] : []),
  documents: (it) => [{ id: "text", title: "Text", view: () => <DocumentText document={it} /> }],
  skills: (it) => [{ id: "files", title: "Files", view: () => <SkillFiles skill={it} /> }],
  integrations: (it, again) => (mayConnect() ? [{ id: "connect", title: "Connect", view: () => <Connect app={it} done={again} /> }] : []),
  mcp: (it) => [{ id: "preview", title: "Preview", view: () => <Preview profile={it} /> }, { id: "mine", title: "My tools", view: () => <MyTools profile={it} /> }],
  environments: (it) => (mayWorkAt(it) ? [{ id: "terminal", title: "Terminal", view: () => <Terminal environment={it} /> }] : []),
  tenants: (it) => (may("tenant-usage:read", "GET /v1/tenant-usage/{tenantId}") ? [{ id: "quotas", title: "Quotas", view: () => <Quotas tenant={it} /> }] : []),
  projects: (it) => (may("projects:read", "GET /v1/projects/{id}/costs/daily") ? [{ id: "costs", title: "Costs", view: () => <Costs path={`/v1/projects/${it._id}`} /> }] : []),
};

/// And those after them.
const LAST: Record<string, (record: Record_, again: () => void) => Tab[]> = {
  assistants: (it, again) => [
    ...(it.isCustom && mayIn(it.projectId) && mayCompare() ? [{ id: "compare", title: "Compare prompts", view: () => <Compare assistant={it} save={(presets) => call("PATCH", `/v1/assistants/${it.identifier}`, { body: { presets } }).then(again)} /> }] : []),
    ...(it.isCustom && may("memory:read", "GET /v1/memory/assistants/{identifier}/core") ? [{ id: "memory", title: "Memory", view: () => <Memory assistant={it} /> }] : []),
  ],
  tenants: (it) => (may("tenant-integrations:read", "GET /v1/tenant-integrations") ? [{ id: "accounts", title: "Accounts", view: () => <Accounts tenant={it} /> }] : []),
  agents: (it, again) => (may("agents:read", "GET /v1/agents/agents/{agentId}/evaluation-config") ? [{ id: "judging", title: "Evaluation", view: () => <Judging agent={it} done={again} /> }] : []),
};

const ABOVE: Record<string, () => ComponentChildren> = { documents: () => <Search />, skills: () => <ImportSkill />, "tool-servers": () => <ImportApi />, webhooks: () => <DefaultSecret /> };

/// A page as soon as it is known what the caller may do there.
function Page(): JSX.Element {
  const { path } = useRoute();
  const [first = "home", id, more] = path;
  const calls = callsOf(first);
  const known = useLoad(async () => (allTried(calls) ? null : tryOut(calls)), [first]);
  if (!allTried(calls)) return known.error ? <Failure error={known.error} /> : <p role="status">Looking at what you may do…</p>;
  if (first === "home") return <Home />;
  if (first === "runs") return <Runs />;
  if (first === "threads" && id) return <ThreadPage key={id} id={id} />;
  if (first === "chats" && id && more) return <ChatPage key={more} assistant={id} uid={more} />;
  const of = group(first);
  if (!of) return <Failure error={new Error("There is no such page.")} />;
  if (!isOpen(of)) {
    return (
      <>
        <header class="page"><h1>{of.title}</h1></header>
        <p>{of.scope === "admin" ? "This takes a full API key." : "This is not open to you."} <button type="button" onClick={() => logOut()}>Come in with another credential</button></p>
      </>
    );
  }
  if (of.id === "speech") return <Speech id={id} />;
  return id && !of.isFlat ? <RecordPage key={id} group={of} id={id} first={FIRST[of.id]} last={LAST[of.id]} /> : <ListPage key={of.id} group={of} above={ABOVE[of.id]?.()} />;
}

/// A page that cannot be drawn says so, and leaves the others alone.
class Boundary extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  state = { error: null };

  componentDidCatch(error: Error): void {
    this.setState({ error });
  }

  render(): ComponentChildren {
    return this.state.error ? <Failure error={this.state.error} /> : this.props.children;
  }
}

const THEMES = ["system", "light", "dark"] as const;

function theme(name: string): void {
  localStorage.setItem("console.theme", name);
  name === "system" ? delete document.documentElement.dataset.theme : (document.documentElement.dataset.theme = name);
}

function Frame(): JSX.Element {
  const { path } = useRoute();
  const [open, setOpen] = useState<"" | "palette" | "calls" | "menu">("");
  const [, redraw] = useState(0);
  const isFirst = useRef(true);
  const [turn, setTurn] = useState(0);
  const here = path[0] ?? "home";
  const groups = GROUPS.filter(isOpen);
  const hasRuns = canChats() || canThreads();
  const change = (name: string) => (theme(name), redraw((turn) => turn + 1));
  const commands: Command[] = [
    { title: "Home", hint: "page", run: () => go(href("home")) },
    { title: "Runs", hint: "page", run: () => go(href("runs")) },
    ...groups.map((of) => ({ title: of.title, hint: "page", run: () => go(href(of.id)) })),
    ...groups.filter(creates).map((of) => ({ title: `New ${of.one}`, hint: "action", run: () => go(href(of.id) + "?new=1") })),
    ...THEMES.map((name) => ({ title: `Theme: ${name}`, hint: "action", run: () => change(name) })),
    { title: "API calls of this page", hint: "action", run: () => setOpen("calls") },
    { title: "Log out", hint: "action", run: () => void logOut() },
  ];
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test((event.target as HTMLElement).tagName);
      if ((event.key === "k" && (event.metaKey || event.ctrlKey)) || (event.key === "/" && !isTyping && !document.querySelector("dialog[open]"))) {
        event.preventDefault();
        setOpen("palette");
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  useEffect(() => {
    setOpen((now) => (now === "menu" ? "" : now));
    scrollTo(0, 0);
    if (!isFirst.current) document.getElementById("main")?.focus({ preventScroll: true });
    isFirst.current = false;
    document.title = `${(group(here)?.title ?? here.charAt(0).toUpperCase() + here.slice(1))} · Console`;
  }, [path.join("/")]);
  const link = (id: string, title: string) => <li key={id}><a href={href(id)} onClick={() => location.hash === href(id) && setTurn(turn + 1)} aria-current={here === id || (id === "runs" && ["threads", "chats"].includes(here)) ? "page" : undefined}>{title}</a></li>;
  const section = (name: string) => {
    const of = groups.filter((one: Group) => one.section === name);
    return of.length > 0 && <section key={name}><h2>{name}</h2><ul>{of.map((one) => link(one.id, one.title))}</ul></section>;
  };
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>To the content</a>
      <div class="frame">
        <header class="bar">
          <button type="button" class="quiet burger" aria-label="Menu" aria-expanded={open === "menu"} onClick={() => setOpen(open === "menu" ? "" : "menu")}>☰</button>
          <strong>Console</strong>
          <button type="button" class="find" onClick={() => setOpen("palette")}>Go to… <kbd>/</kbd></button>
          <span class="spring" />
          <button type="button" class="quiet" onClick={() => setOpen("calls")}>API calls</button>
          <select aria-label="Theme" value={localStorage.getItem("console.theme") ?? "system"} onChange={(event) => change(event.currentTarget.value)}>{THEMES.map((name) => <option key={name}>{name}</option>)}</select>
          <span class="who">{identity!.label}</span>
          <button type="button" class="quiet" onClick={() => logOut()}>Log out</button>
        </header>
        <nav class={open === "menu" ? "open" : ""} aria-label="Pages">
          <ul>{link("home", "Home")}{hasRuns && link("runs", "Runs")}</ul>
          {SECTIONS.map(section)}
          <ul><li><a href="/docs">API reference</a></li></ul>
        </nav>
        <main id="main" tabIndex={-1}><Boundary key={`${path.join("/")} ${turn}`}><Page /></Boundary></main>
      </div>
      {open === "palette" && <Palette commands={commands} close={() => setOpen("")} />}
      {open === "calls" && <Calls close={() => setOpen("")} />}
      <Confirm />
    </>
  );
}

function Console({ problem }: { problem: string | null }): JSX.Element {
  const [, redraw] = useState(0);
  const [tries, setTries] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => onIdentity(() => redraw((turn) => turn + 1)), []);
  const who = identity;
  useEffect(() => {
    setError(null);
    if (who && !allTried(FIRST_CALLS)) void tryOut(FIRST_CALLS).then(() => redraw((turn) => turn + 1), setError);
  }, [who, tries]);
  if (who && error) return <main class="login"><Failure error={error} /><button type="button" onClick={() => setTries(tries + 1)}>Try again</button></main>;
  if (who && !allTried(FIRST_CALLS)) return <main class="login"><p role="status">Looking at what you may do…</p></main>;
  return who ? <Frame /> : <LogIn problem={problem} />;
}

theme(localStorage.getItem("console.theme") ?? "system");
const root = document.getElementById("console")!;
void begin().catch((error: Error) => error.message).then((problem) => render(<Console problem={problem} />, root));
