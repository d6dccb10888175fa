// Numbers, times and texts as people read them.
export const number = (value: number | undefined | null): string => (value ?? 0).toLocaleString("en");

export const compact = (value: number): string =>
  new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

export function money(value: number | undefined | null): string {
  const amount = value ?? 0;
  const digits = amount === 0 || Math.abs(amount) >= 0.01 ? 2 : 6;
  return "$" + amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits });
}

export function duration(ms: number | undefined | null): string {
  if (ms === undefined || ms === null) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

export const bytes = (value: number | undefined): string =>
  value === undefined ? "" : value < 1024 ? `${value} B` : value < 1_048_576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1_048_576).toFixed(1)} MiB`;

const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

export function time(value: number | string | undefined | null): string {
  const at = value ? new Date(value) : null;
  return at && !Number.isNaN(at.getTime()) ? clock.format(at) : "";
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000]];

/// How long ago, or in how long.
export function ago(value: number | string | undefined | null): string {
  if (!value) return "";
  const ms = new Date(value).getTime() - Date.now();
  const [unit, size] = UNITS.find(([, size]) => Math.abs(ms) >= size) ?? ["second", 1000];
  return relative.format(Math.round(ms / size), unit);
}

export const day = (at: Date): string => at.toISOString().slice(0, 10);

/// The day on the clock of whoever looks.
export const localDay = (at: Date): string => day(new Date(at.getTime() - at.getTimezoneOffset() * 60_000));

export const json = (value: unknown): string => JSON.stringify(value, null, 2);

/// Text that may be JSON, set out if it is.
export function pretty(text: string): string {
  try {
    return json(JSON.parse(text));
  } catch {
    return text;
  }
}

/// `maxToolCalls` as "Max tool calls".
export function words(name: string): string {
  const spaced = name.replace(/^_/, "").replace(/([a-z0-9])([A-Z])/g, "$1 $2").replace(/[_-]/g, " ").toLowerCase();
  return spaced.charAt(0).toUpperCase() + spaced.slice(1).replace(/\b(id|uid|url|api|mcp|ms|cpus)\b/g, (word) => word.toUpperCase());
}
