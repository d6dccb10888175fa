// Documents are dropped here, and searched: passages with what they scored.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post, upload } from "../api.ts";
import type { Record_ } from "../groups.ts";
import { Failure } from "../parts/basic.tsx";
import { Markdown } from "../parts/markdown.tsx";
import { go, href } from "../router.ts";
import { may } from "../session.ts";

export function Search(): JSX.Element {
  const [query, setQuery] = useState("");
  const [mode, setMode] = useState("hybrid");
  const [results, setResults] = useState<Record_[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const search = async (event: Event) => {
    event.preventDefault();
    setError(null);
    await post("/v1/documents/search", { query, mode, limit: 10 }).then((got) => setResults(got.results), setError);
  };
  const takesFiles = may("documents:write", "POST /v1/documents/upload");
  const add = async (files: FileList | null) => {
    if (!takesFiles) return;
    setError(null);
    const made = await Promise.allSettled([...(files ?? [])].map((file) => upload<Record_>("/v1/documents/upload", file)));
    const failed = made.find((one) => one.status === "rejected");
    if (failed) setError(failed.reason);
    else if (made.length) go(href("documents", (made.at(-1) as PromiseFulfilledResult<Record_>).value._id));
  };
  return (
    <section class="card" aria-label="Search and upload" onDragOver={(event) => event.preventDefault()} onDrop={(event) => (event.preventDefault(), void add(event.dataTransfer?.files ?? null))}>
      <form class="row" onSubmit={search}>
        {may("documents:read", "POST /v1/documents/search") && (
          <>
            <input type="search" aria-label="Search passages" placeholder="Search passages" value={query} onInput={(event) => setQuery(event.currentTarget.value)} required />
            <select aria-label="Mode" value={mode} onChange={(event) => setMode(event.currentTarget.value)}>{["hybrid", "keyword", "semantic"].map((mode) => <option key={mode}>{mode}</option>)}</select>
            <button>Search</button>
          </>
        )}
        {takesFiles && <label class="button">Upload<input type="file" multiple class="hidden" accept=".md,.txt,.pdf,.docx,.html" onChange={(event) => add(event.currentTarget.files)} /></label>}
      </form>
      <Failure error={error} />
      {results && (
        <ol class="passages">
          {results.map((result) => (
            <li key={result.chunkId}>
              <h2><a href={href("documents", result.documentId)}>{result.name}</a> <small>{result.headingPath?.join(" › ")} · score {result.score.toFixed(3)}</small></h2>
              <meter min={0} max={1} value={result.score} aria-label="Score" />
              <Markdown text={result.text} />
            </li>
          ))}
          {results.length === 0 && <li>Nothing found.</li>}
        </ol>
      )}
    </section>
  );
}

/// Takes a skill as an archive.
export function ImportSkill(): JSX.Element | null {
  const [error, setError] = useState<Error | null>(null);
  const add = async (files: FileList | null) => {
    setError(null);
    if (files?.[0]) await upload<Record_>("/v1/skills/import", files[0]).then((made) => go(href("skills", made.skill.id)), setError);
  };
  if (!may("skills:write", "POST /v1/skills/import")) return null;
  return (
    <section class="card" aria-label="Import a skill">
      <label class="button">Import a skill (.zip)<input type="file" class="hidden" accept=".zip" onChange={(event) => add(event.currentTarget.files)} /></label>
      <Failure error={error} />
    </section>
  );
}

/// What a model reads of a skill, and where it is written.
export function SkillFiles({ skill }: { skill: Record_ }): JSX.Element {
  const of = skill.type === "folder" ? "folders" : "documents";
  return (
    <>
      <p class="reason">{skill.description}</p>
      <p><a href={href(of, skill.id)}>Open as a {skill.type}</a> to edit, attach or delete it.</p>
      {skill.files.map((file: Record_) => (
        <details key={file.path} open={skill.files.length === 1 || file.path === "SKILL.md"}>
          <summary><code>{file.path}</code></summary>
          {/\.md$/i.test(file.path) ? <Markdown text={file.content} /> : <pre>{file.content}</pre>}
        </details>
      ))}
    </>
  );
}

export function DocumentText({ document }: { document: Record_ }): JSX.Element {
  const state = document.indexing;
  return (
    <>
      {state && state.state !== "done" && <p role="status">Index: {state.state}, {state.chunksDone} of {state.chunksTotal} chunks{state.error && `: ${state.error.message}`}</p>}
      {document.summary && <p class="reason">{document.summary}</p>}
      <Markdown text={document.markdownContent ?? ""} />
    </>
  );
}
