// A form made from what an operation takes. What is wrong is said at its field.
import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { ApiError, type Issue } from "../api.ts";
import { json, words } from "../format.ts";
import { type Field, useFields } from "../openapi.ts";
import { useChoices } from "../sources.ts";
import { Failure } from "./basic.tsx";

/// What matters most in a group stands at its top.
const TOP = ["presets", "availableToolsGroupsUids", "approvalTools"];

type Values = Record<string, string>;

interface Props {
  method: string;
  /// The operation, as the OpenAPI document names it.
  path: string;
  /// Fields that are always in sight, in this order; the others are behind "More settings".
  first?: string[];
  /// Fields that are not for people.
  without?: string[];
  record?: Record<string, any>;
  submit: (body: Record<string, unknown>) => Promise<unknown>;
  label: string;
}

/// The value of a field in a record.
const valueIn = (record: Record<string, any> | undefined, field: Field): unknown => field.path.split(".").reduce<any>((value, name) => value?.[name], record);

function shown(field: Field, value: unknown): string {
  if (value === undefined || value === null) return "";
  if (field.kind === "list" && Array.isArray(value)) return value.join("\n");
  return typeof value === "object" ? json(value) : String(value);
}

/// The value that was typed; throws what is wrong with it.
function read(field: Field, text: string): unknown {
  if (field.kind === "long" || field.kind === "text" || field.kind === "choice") return text === "" ? (field.required ? "" : null) : text;
  if (field.kind === "list") {
    const items = text.split("\n").map((line) => line.trim()).filter(Boolean);
    // Of a list that may be unset an empty one means something else.
    return items.length || !field.nullable ? items : null;
  }
  if (text.trim() === "") return null;
  if (field.kind === "bool") return text === "true";
  if (field.kind === "number") {
    if (Number.isNaN(Number(text))) throw new Error(`${words(field.name)} must be a number`);
    return Number(text);
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${(error as Error).message}`);
  }
}

function Input({ field, id, value, set, about }: { field: Field; id: string; value: string; set: (value: string) => void; about: string }): JSX.Element {
  const known = useChoices(field.name);
  const common = { id, "aria-describedby": about, "aria-required": field.required };
  const onInput = (event: Event) => set((event.currentTarget as HTMLInputElement | HTMLTextAreaElement).value);
  const lines = Math.min(16, Math.max(field.kind === "text" ? 1 : 3, value.split("\n").length + 1));
  if (field.kind === "choice" || field.kind === "bool") {
    const choices = field.kind === "bool" ? ["true", "false"] : field.choices;
    return (
      <select {...common} value={value} onChange={(event) => set(event.currentTarget.value)}>
        <option value="">{field.required ? "" : "default"}</option>
        {choices.map((choice) => <option key={choice} value={choice}>{field.kind === "bool" ? (choice === "true" ? "yes" : "no") : choice}</option>)}
      </select>
    );
  }
  if (/^(password|secret)|^(token|clientSecret|refreshToken)$/.test(field.name)) return <input {...common} type="password" autocomplete="new-password" value={value} onInput={onInput} />;
  if (field.kind === "text") {
    return (
      <>
        <input {...common} autocomplete="off" list={known ? id + "-known" : undefined} value={value} onInput={onInput} />
        {known && <datalist id={id + "-known"}>{known.map((choice) => <option key={choice.value} value={choice.value}>{choice.label}</option>)}</datalist>}
      </>
    );
  }
  if (field.kind === "list" && known?.length) {
    const chosen = value.split("\n").filter(Boolean);
    const all = [...known, ...chosen.filter((one) => !known.some((choice) => choice.value === one)).map((value) => ({ value, label: value }))];
    const toggle = (one: string) => set((chosen.includes(one) ? chosen.filter((other) => other !== one) : [...chosen, one]).join("\n"));
    return (
      <div {...common} class="choices" role="group" aria-label={words(field.name)} aria-required={undefined}>
        {all.map((choice) => <label key={choice.value}><input type="checkbox" checked={chosen.includes(choice.value)} onChange={() => toggle(choice.value)} /> {choice.label}</label>)}
      </div>
    );
  }
  if (field.kind === "number") return <input {...common} inputMode="decimal" value={value} onInput={onInput} />;
  return <textarea {...common} rows={lines} class={field.kind === "json" ? "code" : undefined} placeholder={field.kind === "list" ? "one a line" : field.kind === "json" ? "JSON" : ""} value={value} onInput={onInput} />;
}

export function Form({ method, path, first = [], without = [], record, submit, label }: Props): JSX.Element {
  const { value: all, error: unread } = useFields(method, path);
  const [typed, setTyped] = useState<Values>({});
  const [problems, setProblems] = useState<Issue[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const [state, setState] = useState<"" | "busy" | "done">("");
  const prefix = useId();
  if (!all) return <Failure error={unread} />;
  const rank = (field: Field) => (first.includes(field.name) ? first.indexOf(field.name) : field.required ? 50 : 100);
  const fields = all.filter((field) => !without.includes(field.name)).sort((a, b) => rank(a) - rank(b));
  const isFirst = (field: Field) => rank(field) < 100 || fields.length <= 6;
  const of = (name: string) => (issue: Issue) => issue.path === name || issue.path.startsWith(name + ".") || issue.path.startsWith(name + "[");

  const send = async (event: Event) => {
    event.preventDefault();
    const body: Record<string, unknown> = {};
    const wrong: Issue[] = [];
    for (const field of fields.flatMap((field) => (field.kind === "group" ? field.fields : [field]))) {
      const value = typed[field.path];
      if (value === undefined || (record && value === shown(field, valueIn(record, field))) || (!record && value === "" && !field.required)) continue;
      try {
        const [first, second] = field.path.split(".") as [string, string?];
        const meant = read(field, value);
        // A group may be replaced as a whole: what is not changed in it is sent as it is.
        if (second) body[first] = { ...record?.[first], ...(body[first] as object), [second]: meant };
        else body[first] = meant;
      } catch (error) {
        wrong.push({ path: field.path, code: "format", message: (error as Error).message });
      }
    }
    setProblems(wrong);
    setError(null);
    if (wrong.length) return;
    setState("busy");
    try {
      await submit(body);
      setTyped({});
      setState("done");
    } catch (error) {
      const issues = error instanceof ApiError ? error.issues : [];
      setProblems(issues);
      const isAtField = issues.length > 0 && issues.every((issue) => fields.some((field) => of(field.name)(issue)));
      setError(isAtField ? null : (error as Error));
      setState("");
    }
  };

  const one = (field: Field): JSX.Element => {
    const id = `${prefix}-${field.path}`;
    const wrong = problems.filter(of(field.path));
    if (field.kind === "group") {
      return (
        <details class="group" key={field.path} open={wrong.length > 0 || first.includes(field.name) || undefined}>
          <summary>{words(field.name)} <small>{field.description}</small></summary>
          {[...field.fields].sort((a, b) => Number(TOP.includes(b.name)) - Number(TOP.includes(a.name))).map(one)}
        </details>
      );
    }
    return (
      <div class={wrong.length ? "field wrong" : "field"} key={field.path}>
        <label htmlFor={id}>{words(field.name)}{field.required && <span aria-hidden="true"> *</span>}</label>
        <Input field={field} id={id} about={id + "-about"} value={typed[field.path] ?? shown(field, valueIn(record, field))}
          set={(value) => {
            setTyped({ ...typed, [field.path]: value });
            setState("");
          }} />
        <small id={id + "-about"}>{wrong.length ? wrong.map((issue) => <strong role="alert" key={issue.path + issue.code}>{issue.message}</strong>) : field.description}</small>
      </div>
    );
  };
  const more = fields.filter((field) => !isFirst(field));
  const isMoreWrong = problems.some((issue) => more.some((field) => of(field.name)(issue)));
  return (
    <form class="form" onSubmit={send} noValidate>
      {fields.filter(isFirst).map(one)}
      {more.length > 0 && <details open={isMoreWrong || undefined}><summary>More settings ({more.length})</summary>{more.map(one)}</details>}
      <Failure error={error} />
      <div class="row">
        <button class="main" disabled={state === "busy"} aria-busy={state === "busy"}>{label}</button>
        {state === "done" && <span role="status">Saved.</span>}
      </div>
    </form>
  );
}
