// Tools of a server, each of which can be tried.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, post } from "../api.ts";
import { json } from "../format.ts";
import { fill, type Record_ } from "../groups.ts";
import { Act, Badge, Failure, Json, useLoad } from "../parts/basic.tsx";
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

function One({ server, tool }: { server: Record_; tool: Tool }): JSX.Element {
  const [typed, setTyped] = useState(() => example(tool));
  const [result, setResult] = useState<Record_ | null>(null);
  const base = server.type === "integration" ? "/v1/integrations/servers/{id}" : "/v1/tool-servers/{id}";
  const test = async () => setResult(await post(fill(base + "/tools/{tool}/test", { id: server._id, tool: tool.function.name }), { parameters: JSON.parse(typed) }));
  return (
    <details class="tool">
      <summary><code>{tool.function.name}</code> {tool.method && <small>{tool.method} {tool.endpoint}</small>} {tool.requiresApproval && <Badge of="needs approval" />}{tool.enabled === false && <Badge of="off" />}<p>{tool.function.description}</p></summary>
      <p class="label">Parameters</p>
      <Json value={tool.function.parameters ?? {}} />
      {mayIn(server.projectId) && may("tool-servers:write", server.type === "integration" ? "POST /v1/integrations/servers/{id}/tools/{tool}/test" : "POST /v1/tool-servers/{toolServerId}/tools/{toolName}/test") && (
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

export function Tools({ server }: { server: Record_ }): JSX.Element {
  const loaded = useLoad<Tool[]>(async (signal) => {
    const tools: Tool[] = [];
    let cursor: string | undefined;
    do {
      const page = await get(`/v1/tool-servers/${server._id}/tools`, { limit: 100, cursor }, signal);
      tools.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor);
    return tools;
  }, [server._id, server.lastEditTimestampMs]);
  return (
    <>
      <Failure error={loaded.error} />
      {loaded.value?.map((tool) => <One key={tool.function.name} server={server} tool={tool} />)}
      {loaded.value?.length === 0 && <p>It has no tools.{server.type === "http" && " Add definitions in its settings."}</p>}
    </>
  );
}
