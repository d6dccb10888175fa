// What a field may be filled with, where that is a record that exists.
import { get } from "./api.ts";
import { group, idOf, isOpen, nameOf, page } from "./groups.ts";
import { useLoad } from "./parts/basic.tsx";
import { may } from "./session.ts";

interface Choice {
  value: string;
  label: string;
}

/// Fields of one form ask for the same, and once.
const BRIEFLY_MS = 10_000;

function briefly<T>(load: () => Promise<T>): () => Promise<T> {
  let known: Promise<T> | null = null;
  return () => {
    if (!known) {
      known = load();
      setTimeout(() => (known = null), BRIEFLY_MS);
    }
    return known;
  };
}

/// The newest records of a group, by id.
const records = (id: string) => briefly(async (): Promise<Choice[]> => {
  const of = group(id)!;
  if (!isOpen(of)) return [];
  const { rows } = await page(of, of.path, {}, 0, 100);
  return rows.map((row) => ({ value: idOf(of, row), label: String(nameOf(of, row)) }));
});

const models = briefly(async (): Promise<{ provider: string; llm: string }[]> => (may("models:read") ? (await get("/v1/models")).models : []));
const agents = records("agents");
const projects = records("projects");

const model = async (): Promise<Choice[]> => (await models()).map((it) => ({ value: it.llm, label: `${it.llm} (${it.provider})` }));

const SOURCES: Record<string, () => Promise<Choice[]>> = {
  agentId: agents,
  subagentsIds: agents,
  assistantId: records("assistants"),
  projectId: projects,
  projectIds: projects,
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
