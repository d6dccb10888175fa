// Tools of a server, each of which can be tried.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, get, post } from "../api.ts";
import { json } from "../format.ts";
import { fill, type Record_ } from "../groups.ts";
import { Act, Badge, Dialog, Failure, Json, useLoad } from "../parts/basic.tsx";
import { Form } from "../parts/form.tsx";
import { go, href } from "../router.ts";
import { may, mayIn } from "../session.ts";

interface Tool {
  function: { name: string; description?: string; parameters?: { properties?: Record<string, Record_>; required?: string[] } };
  enabled?: boolean;
  requiresApproval?: boolean;
  method?: string;
  endpoint?: string;
}

/// Arguments to begin with: every parameter with a value of its type.
const example = (tool: Tool): string => {
  const values: Record<string, unknown> = { string: "", number: 0, integer: 0, boolean: false, array: [], object: {} };
  const properties = Object.entries(tool.function.parameters?.properties ?? {});
  return json(Object.fromEntries(properties.map(([name, schema]) => [name, schema.default ?? schema.enum?.[0] ?? values[schema.type as string] ?? null])));
};

function One({ server, tool, changed }: { server: Record_; tool: Tool; changed: () => void }): JSX.Element {
  const [typed, setTyped] = useState(() => example(tool));
  const [result, setResult] = useState<Record_ | null>(null);
  const isApp = server.type === "integration";
  const base = isApp ? "/v1/integrations/servers/{id}" : "/v1/tool-servers/{id}";
  const change = async (path: string, body: object) => {
    await call("PATCH", fill(base + path, { id: server._id, tool: tool.function.name }), { body });
    changed();
  };
  const isOff = tool.enabled === false;
  const test = async () => setResult(await post(fill(base + "/tools/{tool}/test", { id: server._id, tool: tool.function.name }), { parameters: JSON.parse(typed) }));
  return (
    <details class="tool">
      <summary><code>{tool.function.name}</code> {tool.method && <small>{tool.method} {tool.endpoint}</small>} {tool.requiresApproval && <Badge of="needs approval" />}{tool.enabled === false && <Badge of="off" />}<p>{tool.function.description}</p></summary>
      {mayIn(server.projectId) && (isApp
        ? may("integrations:write", "PATCH /v1/integrations/servers/{id}/tools") && <p><Act run={() => change("/tools", { [isOff ? "enable" : "disable"]: [tool.function.name] })}>{isOff ? "Offer it" : "Offer it no longer"}</Act></p>
        : may("tool-servers:write", "PATCH /v1/tool-servers/{toolServerId}/tools/{toolName}") && <p><Act run={() => change("/tools/{tool}", { requiresApproval: !tool.requiresApproval })}>{tool.requiresApproval ? "Let it run without approval" : "Let it wait for approval"}</Act></p>)}
      <p class="label">Parameters</p>
      <Json value={tool.function.parameters ?? {}} />
      {!isOff && mayIn(server.projectId) && may("tool-servers:write", isApp ? "POST /v1/integrations/servers/{id}/tools/{tool}/test" : "POST /v1/tool-servers/{toolServerId}/tools/{toolName}/test") && (
        <>
          <label>Arguments<textarea class="code" rows={Math.min(12, typed.split("\n").length + 1)} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
          <Act kind="main" run={test}>Try it</Act>
        </>
      )}
      {result && (
        <div role="status">
          <p><Badge of={result.success ? "done" : "failed"} /> {result.statusCode} {result.requestMethod} <code>{result.requestUrl}</code> in {Math.round(result.executionTimeMs)} ms</p>
          {result.error && <p class="failure">{result.error}</p>}
          {result.data !== undefined && <Json value={result.data} />}
        </div>
      )}
    </details>
  );
}

/// A tool server made of a description of its API.
export function ImportApi(): JSX.Element | null {
  const [open, setOpen] = useState(false);
  if (!may("tool-servers:write", "POST /v1/tool-servers/import-openapi")) return null;
  const make = async (body: Record<string, unknown>) => go(href("tool-servers", (await post<Record_>("/v1/tool-servers/import-openapi", body))._id));
  return (
    <section class="card" aria-label="Import an API">
      <button type="button" onClick={() => setOpen(true)}>Import an OpenAPI description</button>
      {open && <Dialog title="Import an OpenAPI description" close={() => setOpen(false)} wide><Form method="POST" path="/v1/tool-servers/import-openapi" first={["url", "spec", "name", "baseUrl"]} submit={make} label="Make a tool server" /></Dialog>}
    </section>
  );
}

export function Tools({ server }: { server: Record_ }): JSX.Element {
  const loaded = useLoad<Tool[]>(async (signal) => {
    const tools: Tool[] = [];
    let cursor: string | undefined;
    do {
      const page = await get(`/v1/tool-servers/${server._id}/tools`, { limit: 100, cursor, available: server.type === "integration" || undefined }, signal);
      tools.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor);
    return tools;
  }, [server._id, server.lastEditTimestampMs]);
  return (
    <>
      <Failure error={loaded.error} />
      {loaded.value?.map((tool) => <One key={tool.function.name} server={server} tool={tool} changed={loaded.again} />)}
      {loaded.value?.length === 0 && <p>It has no tools.{server.type === "http" && " Add definitions in its settings."}</p>}
    </>
  );
}
