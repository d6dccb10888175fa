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
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [, redraw] = useState(0);
  const [tries, setTry] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  const [total, setTotal] = useState<number | null>(null);
  const pages = useMemo(() => new Map<number, T[] | "asked">(), of);

  useEffect(() => {
    const measure = () => frame.current && setHeight(Math.max(200, innerHeight - frame.current.getBoundingClientRect().top - 24));
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, [total === 0]);

  const full = (total ?? 0) * ROW;
  const shownHeight = Math.min(full, TALLEST);
  // Above the tallest, one pixel of the scroll bar stands for more than one of the list.
  const at = full > TALLEST ? (top / Math.max(1, TALLEST - height)) * (full - height) : top;
  const first = Math.max(0, Math.floor(at / ROW) - 8);
  const last = Math.min(total ?? PAGE, Math.ceil((at + height) / ROW) + 8);

  useEffect(() => {
    const leaving = new AbortController();
    const wanted: number[] = [];
    for (let page = Math.floor(first / PAGE); page * PAGE < Math.max(1, last); page++) if (!pages.has(page)) wanted.push(page);
    const timer = setTimeout(() => {
      for (const page of wanted) {
        pages.set(page, "asked");
        load(page * PAGE, PAGE, leaving.signal).then(
          (got) => {
            if (leaving.signal.aborted) return;
            pages.set(page, got.rows);
            setError(null);
            setTotal(got.total);
            redraw((turn) => turn + 1);
          },
          (error) => {
            pages.delete(page);
            if (!leaving.signal.aborted) setError(error);
          },
        );
      }
    }, total === null ? 0 : 60);
    return () => {
      clearTimeout(timer);
      leaving.abort();
      for (const page of wanted) if (pages.get(page) === "asked") pages.delete(page);
    };
  }, [Math.floor(first / PAGE), Math.floor(Math.max(0, last - 1) / PAGE), pages, tries]);

  useEffect(() => {
    setTotal(null);
    setTop(0);
    if (frame.current) frame.current.scrollTop = 0;
  }, [pages]);

  const template = { gridTemplateColumns: columns.map((column) => column.width ?? "minmax(0, 1fr)").join(" ") };
  const rows: JSX.Element[] = [];
  for (let i = first; i < last && total !== null; i++) {
    const page = pages.get(Math.floor(i / PAGE));
    const row = Array.isArray(page) ? page[i % PAGE] : undefined;
    const to = row !== undefined && href?.(row);
    const y = Math.round(i * ROW - at + top);
    rows.push(
      <div key={i} role="row" aria-rowindex={i + 2} class="tr" style={{ ...template, transform: `translateY(${y}px)` }}>
        {columns.map((column, j) => (
          <div role="cell" class="td" key={j}>
            {row === undefined ? <span class="waiting" /> : j === 0 && to ? <a href={to}>{column.of(row) || "(no name)"}</a> : column.of(row)}
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
        onScroll={(event) => setTop(event.currentTarget.scrollTop)} onKeyDown={step}>
        <div role="presentation" style={{ height: `${shownHeight}px`, position: "relative" }}>{rows}</div>
      </div>
      <div class="count">{total === null ? (error ? "" : "Loading…") : `${number(total)} ${total === 1 ? "row" : "rows"}`}</div>
    </div>
  );
}
