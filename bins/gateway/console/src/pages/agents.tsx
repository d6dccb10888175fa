// What an agent has beside its settings: threads, costs, how it is judged.
import type { JSX } from "preact";
import { call, get, post } from "../api.ts";
import { compact, money, number } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Failure, Json, useLoad } from "../parts/basic.tsx";
import { Chart } from "../parts/chart.tsx";
import { Form } from "../parts/form.tsx";
import { List } from "../parts/list.tsx";
import { go, href } from "../router.ts";
import { may, mayIn } from "../session.ts";
import { THREAD_COLUMNS, threads } from "./runs.tsx";

export const Start = ({ agent }: { agent: Record_ }): JSX.Element => (
  <Form method="POST" path="/v1/agents/{agentId}/threads" first={["message", "name", "tenantId", "tags"]} without={["files"]} label="Start a thread"
    submit={(body) => post(`/v1/agents/${agent._id}/threads`, body).then((thread) => go(href("threads", thread._id)))} />
);

export const Threads = ({ agent }: { agent: Record_ }): JSX.Element => (
  <List label="Threads" columns={THREAD_COLUMNS} of={[agent._id]} href={(it) => href("threads", it._id)} empty="No threads yet. Start one."
    load={(offset, limit, signal) => threads({ agentId: agent._id }, offset, limit, signal)} />
);

export function Costs({ path }: { path: string }): JSX.Element {
  const loaded = useLoad<Record_[]>((signal) => get(path + "/costs/daily", { fill: true }, signal), [path]);
  const rows = loaded.value ?? [];
  const at = rows.map((row) => row.date);
  return (
    <>
      <Failure error={loaded.error} />
      {loaded.value && (
        <div class="charts">
          <Chart title="Cost" at={at} curves={[{ title: "Replies", values: rows.map((row) => row.totalCost) }, { title: "Secondary", values: rows.map((row) => row.secondaryCost ?? 0) }]} format={money} />
          <Chart title="Tokens" at={at} curves={[{ title: "In", values: rows.map((row) => row.inputTokens) }, { title: "Out", values: rows.map((row) => row.outputTokens) }]} format={compact} />
          <Chart title="Threads" at={at} curves={[{ title: "Threads", values: rows.map((row) => row.threadCount ?? 0) }]} format={number} />
        </div>
      )}
    </>
  );
}

export function Judging({ agent, done }: { agent: Record_; done: () => void }): JSX.Element {
  const path = `/v1/agents/agents/${agent._id}/evaluation-config`;
  const loaded = useLoad((signal) => get(path, {}, signal), [path]);
  if (!loaded.value) return <Failure error={loaded.error} />;
  if (!mayIn(agent.projectId) || !may("agents:write", "PUT /v1/agents/agents/{agentId}/evaluation-config")) return <Json value={loaded.value} />;
  return <Form method="PUT" path="/v1/agents/agents/{agentId}/evaluation-config" record={loaded.value} first={["enabled", "threshold", "customCriteria"]} label="Save" submit={(body) => call("PUT", path, { body }).then(() => (loaded.again(), done()))} />;
}
