// What a field may be filled with, where that is a record that exists.
import { get } from "./api.ts";
import { group, idOf, nameOf, page } from "./groups.ts";
import { useLoad } from "./parts/basic.tsx";
import { may } from "./session.ts";

export interface Choice {
  value: string;
  label: string;
}

/// The newest records of a group, by id.
const records = (id: string) => async (): Promise<Choice[]> => {
  const of = group(id)!;
  if (!may(of.scope)) return [];
  const { rows } = await page(of, of.path, {}, 0, 100);
  return rows.map((row) => ({ value: idOf(of, row), label: String(nameOf(of, row)) }));
};

const models = async (): Promise<{ provider: string; llm: string }[]> => (may("models:read") ? (await get("/v1/models")).models : []);

const model = async (): Promise<Choice[]> => (await models()).map((it) => ({ value: it.llm, label: `${it.llm} (${it.provider})` }));

const SOURCES: Record<string, () => Promise<Choice[]>> = {
  agentId: records("agents"),
  subagentsIds: records("agents"),
  assistantId: records("assistants"),
  projectId: records("projects"),
  projectIds: records("projects"),
  environmentId: records("environments"),
  toolServerId: records("tool-servers"),
  profileId: records("mcp"),
  tierId: records("tiers"),
  knowledgeDocumentIds: records("documents"),
  knowledgeFolderIds: records("folders"),
  availableToolsGroupsUids: async () => (may("tool-servers:read") ? (await get("/v1/tool-groups")).map((it: any) => ({ value: it.uid, label: it.name })) : []),
  provider: async () => [...new Set((await models()).map((it) => it.provider))].map((value) => ({ value, label: value })),
  model,
  llm: model,
  evaluatorModel: model,
};

/// Choices for a field of this name; none = any value.
export function useChoices(name: string): Choice[] | null {
  const source = SOURCES[name];
  const { value } = useLoad(() => source?.() ?? Promise.resolve(null), [name]);
  return value;
}
