// Recordings become text: one is dropped here, and read with the times of its parts.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, upload } from "../api.ts";
import { duration, time } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Copy, Failure, useLoad } from "../parts/basic.tsx";
import { go, href } from "../router.ts";
import { may } from "../session.ts";

/// Minutes and seconds from the beginning.
const at = (ms: number): string => `${Math.floor(ms / 60_000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;

function Transcript({ id }: { id: string }): JSX.Element {
  const { value, error } = useLoad<Record_>((signal) => get(`/v1/speech-to-text/${encodeURIComponent(id)}`, {}, signal), [id]);
  return (
    <section class="card" aria-label="Transcript">
      <Failure error={error} />
      {value && (
        <>
          <p><small>{[value.language, duration(value.durationMs), value.model, time(value.creationTimestampMs)].filter(Boolean).join(" · ")}</small> <Copy text={value.text} label="Copy text" /></p>
          <p class="reason">{value.text}</p>
          {value.segments?.length > 0 && <ol class="entries">{value.segments.map((part: Record_) => <li key={part.startMs}><small>{at(part.startMs)} – {at(part.endMs)}</small><p>{part.text}</p></li>)}</ol>}
          <p><a href={value.audioUrl} target="_blank" rel="noopener noreferrer">Recording</a></p>
        </>
      )}
    </section>
  );
}

export function Speech({ id }: { id?: string }): JSX.Element {
  const [language, setLanguage] = useState("");
  const [known, setKnown] = useState("");
  const [busy, setBusy] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const mayHear = may("speech:write", "POST /v1/speech-to-text");
  const hear = async (files?: FileList | null) => {
    const file = files?.[0];
    if (!file || !mayHear) return;
    setBusy(file.name);
    setError(null);
    const fields = { verbose: "true", ...(language && { language }) };
    await upload<Record_>("/v1/speech-to-text", file, "audio", fields).then((made) => go(href("speech", made.transcriptId)), setError);
    setBusy("");
  };
  const open = (event: Event) => (event.preventDefault(), go(href("speech", known.trim())));
  return (
    <>
      <header class="page"><h1>Speech</h1></header>
      <section class="card" aria-label="Transcribe" onDragOver={(event) => event.preventDefault()} onDrop={(event) => (event.preventDefault(), void hear(event.dataTransfer?.files))}>
        {mayHear && (
          <div class="row">
            <label class="button">Transcribe a recording<input type="file" class="hidden" accept="audio/*,video/mp4,video/webm" disabled={!!busy} onChange={(event) => hear(event.currentTarget.files)} /></label>
            <label>Language <input size={4} maxLength={2} placeholder="any" value={language} onInput={(event) => setLanguage(event.currentTarget.value.trim())} /></label>
          </div>
        )}
        <form class="row" onSubmit={open}>
          <input aria-label="Id of a transcript" placeholder="Id of a transcript" value={known} onInput={(event) => setKnown(event.currentTarget.value)} required />
          <button>Open</button>
        </form>
        <p role="status">{busy && `${busy} is being transcribed…`}</p>
        <Failure error={error} />
      </section>
      {id && <Transcript key={id} id={id} />}
    </>
  );
}
