// What a tenant or an end user has used of what they may: bars that say when they reset, and curves of what was before.
import type { JSX } from "preact";
import { get } from "../api.ts";
import { ago, compact, day, money, time } from "../format.ts";
import type { Record_ } from "../groups.ts";
import { Failure, useLoad } from "../parts/basic.tsx";
import { Chart } from "../parts/chart.tsx";
import { href, useQuery } from "../router.ts";

const shown = (metric: string, value: number): string => (metric === "cost" ? money(value) : compact(value));

export function Quotas({ tenant }: { tenant: Record_ }): JSX.Element {
  const id = encodeURIComponent(tenant.tenantId);
  const [chosen, choose] = useQuery("user");
  const user = encodeURIComponent(chosen);
  const users = useLoad<Record_[]>((signal) => get(`/v1/tenants/${id}/subtenants`, { limit: 100 }, signal).then((page) => page.items), [id]);
  const usage = useLoad((signal) => (user ? get(`/v1/tenant-usage/${id}/subtenants/${user}`, {}, signal) : get(`/v1/tenant-usage/${id}`, {}, signal)), [id, user, tenant]);
  const history = useLoad<Record_[]>((signal) => (user ? get(`/v1/tenant-usage/${id}/subtenants/${user}/history`, { limit: 500 }, signal) : get(`/v1/tenant-usage/${id}/history`, { scope: "tenant", limit: 500 }, signal)), [id, user]);
  const costs = useLoad<Record_[]>((signal) => get(`/v1/tenants/${id}/costs`, {}, signal), [id]);
  const kind = (row: Record_) => `${row.metric} by ${row.windowEvery > 1 ? row.windowEvery + " " : ""}${row.windowUnit}`;
  const kinds = [...new Set((history.value ?? []).map(kind))];
  const days = Array.from({ length: 30 }, (_, i) => day(new Date(Date.now() - (29 - i) * 86_400_000)));
  const spent = new Map((costs.value ?? []).map((row) => [row.date, row.totalCost + (row.secondaryCost ?? 0)]));
  return (
    <>
      {users.value && users.value.length > 0 && (
        <select aria-label="Whose quotas" value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">The whole tenant</option>
          {users.value.map((it) => <option key={it.subtenantId} value={it.subtenantId}>{it.displayName || it.subtenantId}</option>)}
        </select>
      )}
      <Failure error={usage.error} />
      <p>{usage.value?.tierId ? <>Tier <a href={href("tiers")}>{usage.value.tierId}</a></> : "No tier: nothing is limited but by rules of its own."}</p>
      <ul class="quotas">
        {usage.value?.usage.map((entry: Record_) => (
          <li key={`${entry.ruleId}-${entry.scope}-${entry.metric}-${entry.windowUnit}`}>
            <div class="row"><strong>{entry.metric} a {entry.windowEvery > 1 ? `${entry.windowEvery} ${entry.windowUnit}s` : entry.windowUnit}</strong><span>{shown(entry.metric, entry.current)} of {shown(entry.metric, entry.limit)}</span></div>
            <div class={`quota ${entry.percent >= 100 ? "spent" : entry.percent >= 80 ? "near" : ""}`} role="progressbar" aria-label={`${entry.metric} a ${entry.windowUnit}`} aria-valuenow={entry.percent} aria-valuemin={0} aria-valuemax={100}><span style={{ width: `${entry.percent}%` }} /></div>
            <small>{entry.percent} % · resets {ago(entry.resetsAt)}, {time(entry.resetsAt)} · {entry.origin === "tier" ? `tier ${entry.tierId}` : "rule of its own"}</small>
          </li>
        ))}
      </ul>
      <Failure error={costs.error} />
      {!user && costs.value && <Chart title="Cost by day" at={days} curves={[{ title: "Cost", values: days.map((at) => spent.get(at) ?? 0) }]} format={money} />}
      {kinds.map((one) => {
        const windows = history.value!.filter((row) => kind(row) === one).reverse();
        return <Chart key={one} title={`Closed windows: ${one}`} at={windows.map((row) => (/^(minute|hour)$/.test(row.windowUnit) ? new Date(row.windowStart).toISOString() : day(new Date(row.windowStart))))} curves={[{ title: "Used", values: windows.map((row) => row.consumption) }, { title: "Limit", values: windows.map((row) => row.limit) }]} format={(value) => shown(windows[0]!.metric, value)} />;
      })}
    </>
  );
}
