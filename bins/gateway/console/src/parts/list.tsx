// Lists of any length: only the rows in sight exist, and only their pages are asked for.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { number } from "../format.ts";
import { Empty, Failure } from "./basic.tsx";

export interface Column<T> {
  title: string;
  of: (row: T) => ComponentChildren;
  /// Share of the width, as in `grid-template-columns`.
  width?: string;
}

export interface Page<T> {
  rows: T[];
  total: number;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  /// Rows from `offset` on, as many as the API gives up to `limit`.
  load: (offset: number, limit: number, signal: AbortSignal) => Promise<Page<T>>;
  /// What the list depends on: it begins anew when one of these changes.
  of: unknown[];
  href?: (row: T) => string;
  empty: ComponentChildren;
}

const ROW = 41;
const PAGE = 100;
/// Browsers draw nothing that is taller.
const TALLEST = 8_000_000;

export function List<T>({ label, columns, load, of, href, empty }: Props<T>): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  // Where the bar stands, and what of the list stands there.
  const [{ top, at }, setPlace] = useState({ top: 0, at: 0 });
  const [height, setHeight] = useState(600);
  const [, redraw] = useState(0);
  const [tries, setTry] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  const [total, setTotal] = useState<number | null>(null);
  const pages = useMemo(() => new Map<number, T[]>(), of);
  const asked = useMemo(() => new Map<number, AbortController>(), of);

  useEffect(() => {
    const measure = () => frame.current && setHeight(Math.max(200, innerHeight - frame.current.getBoundingClientRect().top - 24));
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, [total === 0]);

  const full = (total ?? 0) * ROW;
  const shownHeight = Math.min(full, TALLEST);
  // Above the tallest, one pixel of the scroll bar stands for more than one of the list: who drags it jumps, who goes on
  // row by row misses none.
  const scale = full > TALLEST ? (full - height) / (TALLEST - height) : 1;
  const jumpedAt = useRef(0);
  const scrolled = (frame: HTMLElement) => {
    const now = frame.scrollTop;
    const most = Math.max(0, full - height);
    const isLong = Math.abs(now - top) > height;
    if (isLong) jumpedAt.current = performance.now();
    // The last steps of a long way that is animated are short.
    const isStep = scale > 1 && !isLong && performance.now() - jumpedAt.current > 150;
    const next = isStep ? Math.min(most, Math.max(0, at + now - top)) : now * scale;
    const isEnd = now <= 0 || now >= shownHeight - height - 1;
    if (isStep && isEnd && Math.abs(next - now * scale) > height) frame.scrollTop = next / scale;
    setPlace({ top: frame.scrollTop, at: isEnd && frame.scrollTop === now ? now * scale : next });
  };
  const first = Math.max(0, Math.floor(at / ROW) - 8);
  const last = Math.min(total ?? PAGE, Math.ceil((at + height) / ROW) + 8);

  // What comes next, whichever way, is asked for before it is in sight.
  const [from, to] = [Math.floor(Math.max(0, first - PAGE / 2) / PAGE), Math.floor(Math.max(0, Math.min(total ?? 0, last + PAGE / 2) - 1) / PAGE)];
  useEffect(() => {
    for (const [page, asking] of asked) {
      if (page >= from && page <= to) continue;
      asking.abort();
      asked.delete(page);
    }
    const timer = setTimeout(() => {
      for (let page = from; page <= to; page++) {
        if (pages.has(page) || asked.has(page)) continue;
        const asking = new AbortController();
        asked.set(page, asking);
        load(page * PAGE, PAGE, asking.signal).then(
          (got) => {
            if (asking.signal.aborted) return;
            asked.delete(page);
            pages.set(page, got.rows);
            setError(null);
            setTotal(got.total);
            redraw((turn) => turn + 1);
          },
          (error) => {
            if (asking.signal.aborted) return;
            asked.delete(page);
            setError(error);
          },
        );
      }
    }, total === null ? 0 : 60);
    return () => clearTimeout(timer);
  }, [from, to, pages, tries]);

  useEffect(() => {
    setTotal(null);
    setPlace({ top: 0, at: 0 });
    if (frame.current) frame.current.scrollTop = 0;
    return () => {
      for (const asking of asked.values()) asking.abort();
      asked.clear();
    };
  }, [pages]);

  const template = { gridTemplateColumns: columns.map((column) => column.width ?? "minmax(0, 1fr)").join(" ") };
  const rows: JSX.Element[] = [];
  for (let i = first; i < last && total !== null; i++) {
    const page = pages.get(Math.floor(i / PAGE));
    const row = page?.[i % PAGE];
    const address = row !== undefined && href?.(row);
    const y = Math.round(i * ROW - at + top);
    rows.push(
      <div key={i} role="row" aria-rowindex={i + 2} class="tr" style={{ ...template, transform: `translateY(${y}px)` }}>
        {columns.map((column, j) => (
          <div role="cell" class="td" key={j}>
            {row === undefined ? <span class="waiting" /> : j === 0 && address ? <a href={address}>{column.of(row) || "(no name)"}</a> : column.of(row)}
          </div>
        ))}
      </div>,
    );
  }

  const step = (event: KeyboardEvent) => {
    const links = [...(frame.current?.querySelectorAll<HTMLElement>(".tr a") ?? [])];
    const now = links.indexOf(document.activeElement as HTMLElement);
    const way = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (!way || !links.length) return;
    event.preventDefault();
    links[Math.min(links.length - 1, Math.max(0, now + way))]!.focus();
  };

  if (total === 0 && !error) return <Empty>{empty}</Empty>;
  return (
    <div class="table" role="table" aria-label={label} aria-rowcount={(total ?? 0) + 1} aria-busy={total === null && !error}>
      {error && <div class="row"><Failure error={error} /><button type="button" onClick={() => (setError(null), setTry((turn) => turn + 1))}>Try again</button></div>}
      <div role="rowgroup"><div role="row" class="tr head" style={template}>{columns.map((column) => <div role="columnheader" class="td" key={column.title}>{column.title}</div>)}</div></div>
      <div ref={frame} role="rowgroup" class="rows" tabIndex={0} aria-label={`${label}, rows`} style={{ height: `${Math.min(height, Math.max(shownHeight, ROW))}px` }}
        onScroll={(event) => scrolled(event.currentTarget)} onKeyDown={step}>
        <div role="presentation" style={{ height: `${shownHeight}px`, position: "relative" }}>{rows}</div>
      </div>
      <div class="count">{total === null ? (error ? "" : "Loading…") : `${number(total)} ${total === 1 ? "row" : "rows"}`}</div>
    </div>
  );
}
