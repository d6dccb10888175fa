// Every group of the API as data: where its records are, what a list shows of them, what can be done with one.
import type { ComponentChildren } from "preact";
import { get, type Query, withQuery } from "./api.ts";
import type { Page } from "./parts/list.tsx";
import type * as Api from "./schema.d.ts";
import { may } from "./session.ts";

/// An address, as the OpenAPI document names it.
type Path = keyof Api.paths;
type Names<T> = (keyof T & string)[];
/// Of the array that a GET answers.
type Element<P extends Path> = Api.paths[P] extends { get: { responses: { 200: { content: { "application/json": (infer T)[] } } } } } ? T : never;

export type Record_ = Record<string, any>;

export interface Action {
  title: string;
  /// A GET whose answer is not shown is of a file, which is downloaded.
  method: "GET" | "POST" | "DELETE" | "PUT" | "PATCH";
  path: Path;
  /// It asks for the fields of its body first.
  asks?: string[];
  body?: unknown;
  /// The body, made of the record.
  bodyOf?: (record: Record_) => unknown;
  confirm?: string;
  kind?: "danger";
  /// Its answer is shown: it may hold a value that is never shown again.
  shows?: boolean;
  /// Whether it can be done with this record.
  when?: (record: Record_) => boolean;
}

/// Records below a record.
export interface Below {
  title: string;
  path: Path;
  /// Key of the array in the answer; none = the answer is the array.
  items?: string;
  paged?: "cursor" | "whole";
  columns: string[];
  /// The filter of the list that takes the id of the record.
  filter?: string;
  /// The group whose records these are.
  group?: string;
  /// The placeholder of a row in the paths of its actions, and the field that fills it.
  id?: [placeholder: string, field: string];
  actions?: Action[];
}

interface Filter {
  name: string;
  choices?: string[];
  /// What no choice means, when that is not everything.
  none?: string;
  label?: string;
}

export interface Group {
  id: string;
  title: string;
  one: string;
  section: "Build" | "Knowledge" | "Connect" | "Access";
  path: Path;
  /// Key of the array in the answer; none = the answer is the array.
  items?: string;
  /// Pages by cursor, or none; most by offset.
  paged?: "cursor" | "whole";
  /// The scope that reads it; `admin` takes a full key.
  scope: string;
  /// The name of the id in paths.
  id_: string;
  idOf?: (record: Record_) => string;
  nameOf?: (record: Record_) => ComponentChildren;
  columns: string[];
  filters?: Filter[];
  create?: { path?: Path; first?: string[]; shows?: boolean };
  edit?: { first?: string[]; without?: string[] };
  read?: Query;
  /// Where one record is, when that is not below the list, and which part of the answer it is.
  record?: { path: Path; of: (answer: Record_) => Record_ };
  remove?: string;
  actions?: Action[];
  below?: Below[];
  empty: string;
  /// A record that comes with the server and cannot be changed.
  isBuiltIn?: (record: Record_) => boolean;
  /// No page of its own for one record.
  isFlat?: boolean;
}

/// A group whose columns are fields of its records; so are those of what is below a record.
const of = <T>(group: Group & { columns: Names<T> }): Group => group;
const below = <T>(rows: Below & { columns: Names<T> }): Below => rows;

const ARCHIVE: Action = { title: "Archive", method: "PATCH", path: "/v1/agents/{agentId}", body: { archived: true }, when: (agent) => !agent.archived };

export const GROUPS: Group[] = [
  of<Api.Assistant>({
    id: "assistants", title: "Assistants", one: "assistant", section: "Build", path: "/v1/assistants", paged: "whole", scope: "assistants:read",
    id_: "identifier", idOf: (it) => it.identifier, columns: ["name", "identifier", "model", "state", "lastEditTimestampMs"], filters: [{ name: "search" }],
    create: { first: ["name", "identifier", "presets", "description", "provider", "model", "availableToolsGroupsUids", "approvalTools"] },
    edit: { first: ["name", "presets", "description", "provider", "model", "availableToolsGroupsUids", "approvalTools"] },
    read: { includePresets: true }, remove: "Chats are kept and can still be read.", isBuiltIn: (it) => !it.isCustom,
    empty: "No assistants yet. An assistant answers messages in chats: make one, then try it in its playground.",
  }),
  of<Api.Agent>({
    id: "agents", title: "Agents", one: "agent", section: "Build", path: "/v1/agents", items: "agents", scope: "agents:read", id_: "agentId",
    columns: ["name", "description", "llm", "disabled", "lastEditTimestampMs"], filters: [{ name: "search" }, { name: "archived", choices: ["true"], none: "Not archived", label: "Archived, too" }, { name: "disabled", choices: ["true", "false"] }],
    create: { first: ["name", "description", "provider", "llm", "assistantSpecialization"] },
    edit: { first: ["name", "description", "provider", "llm", "assistantSpecialization"] },
    remove: "Threads that are not over are ended.", actions: [ARCHIVE],
    empty: "No agents yet. An agent works on a task in the background, for minutes or days: make one, then start a thread.",
  }),
  of<Api.ToolServer>({
    id: "tool-servers", title: "Tool servers", one: "tool server", section: "Build", path: "/v1/tool-servers", items: "toolServers", scope: "tool-servers:read", id_: "toolServerId",
    columns: ["name", "identifier", "type", "toolCount", "health", "lastEditTimestampMs"], filters: [{ name: "search" }, { name: "type", choices: ["http", "mcp", "integration"] }],
    create: { first: ["name", "url", "mcpType", "description"] }, edit: { first: ["name", "url", "description", "toolDefinitions"] }, remove: "Agents and assistants that use it keep it from being deleted.",
    actions: [
      { title: "Refresh tools", method: "POST", path: "/v1/tool-servers/{toolServerId}/refresh", when: (it) => it.type === "mcp" },
      { title: "Clone", method: "POST", path: "/v1/tool-servers/{toolServerId}/clone", asks: ["name"], when: (it) => it.type !== "integration" },
    ],
    empty: "No tool servers yet. A tool server is an HTTP API or an MCP server whose tools agents and assistants may call.",
  }),
  of<Api.Environment>({
    id: "environments", title: "Environments", one: "environment", section: "Build", path: "/v1/environments", items: "environments", scope: "environments:read", id_: "environmentId",
    columns: ["name", "state", "description", "lastEditTimestampMs"], create: { first: ["name", "description", "envVars", "sandboxConfig"] }, edit: { first: ["name", "description", "envVars", "sandboxConfig"] },
    remove: "Its snapshots and connections go with it.",
    actions: [
      { title: "Start a machine", method: "POST", path: "/v1/environments/{environmentId}/sandbox/start", asks: ["timeoutMinutes", "tenantId", "force", "forceUnsavedSnapshot"], shows: true },
      { title: "Make a snapshot", method: "POST", path: "/v1/environments/{environmentId}/snapshot/initialize", shows: true },
      { title: "Go back to the former snapshot", method: "POST", path: "/v1/environments/{environmentId}/snapshot/rollback", asks: ["tenantId"] },
    ],
    below: [
      below<Api.SandboxSession>({ title: "Sessions", path: "/v1/environments/{environmentId}/sessions", items: "sessions", columns: ["sessionId", "status", "tenantId", "isolation", "commandCount", "startedTimestampMs", "stoppedReason"],
        id: ["sessionId", "sessionId"], actions: [{ title: "Commands", method: "GET", path: "/v1/environments/{environmentId}/sessions/{sessionId}", shows: true }] }),
      below<Api.SandboxSnapshot>({ title: "Snapshots", path: "/v1/environments/{environmentId}/snapshots", paged: "whole", columns: ["snapshotId", "status", "sizeBytes", "generation", "creationTimestampMs"] }),
      below<Api.SandboxSnapshot>({ title: "Snapshots of tenants", path: "/v1/environments/{environmentId}/tenant-snapshots", paged: "whole", columns: ["tenantId", "snapshotId", "status", "sizeBytes", "creationTimestampMs"],
        id: ["tenantId", "tenantId"], actions: [{ title: "Delete", method: "DELETE", path: "/v1/environments/{environmentId}/tenant-snapshots/{tenantId}", kind: "danger", confirm: "The tenant's next machine begins with the snapshot of all." }] }),
      { title: "Agents", path: "/v1/environments/{environmentId}/connections", items: "agents", paged: "whole", columns: ["name", "connectedAtMs", "envVarKeys"], group: "agents" },
      { title: "Assistants", path: "/v1/environments/{environmentId}/connections", items: "assistants", paged: "whole", columns: ["name", "identifier", "connectedAtMs", "envVarKeys"], group: "assistants" },
      below<Element<"/v1/environments/{environmentId}/clis">>({ title: "Programs", path: "/v1/environments/{environmentId}/clis", paged: "whole", columns: ["name", "version", "installed"] }),
    ],
    empty: "No environments yet. An environment is the machine an agent works on, and what it may reach.",
  }),
  of<Api.Document>({
    id: "documents", title: "Documents", one: "document", section: "Knowledge", path: "/v1/documents", items: "documents", scope: "documents:read", id_: "id",
    columns: ["name", "fileType", "status", "tokenCount", "tags", "lastEditTimestampMs"], filters: [{ name: "search" }, { name: "status", choices: ["pending", "ready", "failed"] }, { name: "fileType", choices: ["md", "txt", "pdf", "docx", "html"] }, { name: "tags" }],
    create: { first: ["name", "markdownContent", "tags"] }, edit: { first: ["name", "markdownContent", "summary", "tags"] }, remove: "Its sub-documents go with it.",
    actions: [
      { title: "Index again", method: "POST", path: "/v1/documents/{id}/reindex" },
      { title: "Attach", method: "POST", path: "/v1/documents/{id}/attach", asks: ["targetType", "targetId"] },
      { title: "Detach", method: "POST", path: "/v1/documents/{id}/detach", asks: ["targetType", "targetId"] },
    ],
    below: [
      below<Api.ListedChunk>({ title: "Chunks", path: "/v1/documents/{id}/chunks", items: "chunks", columns: ["index", "headingPath", "text", "tokenCount"] }),
      below<Api.Version>({ title: "Versions", path: "/v1/documents/{id}/versions", paged: "whole", columns: ["version", "changeType", "isActive", "size", "createdAt"],
        id: ["version", "version"], actions: [{ title: "Revert", method: "POST", path: "/v1/documents/{id}/revert/{version}", confirm: "The text becomes that of this version, as a new one.", when: (it) => !it.isActive }] }),
    ],
    empty: "No documents yet. Drop a PDF, Word, HTML, Markdown or text file here, or write one.",
  }),
  of<Api.Folder>({
    id: "folders", title: "Folders", one: "folder", section: "Knowledge", path: "/v1/document-folders", paged: "whole", scope: "documents:read", id_: "id",
    columns: ["name", "documentCount", "tags", "lastEditTimestampMs"], create: { first: ["name"] }, edit: { first: ["name"] }, remove: "Its documents move to the folder above.",
    actions: [
      { title: "Attach", method: "POST", path: "/v1/document-folders/{id}/attach", asks: ["targetType", "targetId"] },
      { title: "Detach", method: "POST", path: "/v1/document-folders/{id}/detach", asks: ["targetType", "targetId"] },
    ],
    below: [
      below<Api.Document>({ title: "Documents", path: "/v1/documents", items: "documents", columns: ["name", "fileType", "status", "tokenCount", "lastEditTimestampMs"], filter: "folderId", group: "documents" }),
      below<Api.Folder>({ title: "Folders", path: "/v1/document-folders", paged: "whole", columns: ["name", "documentCount", "lastEditTimestampMs"], filter: "parentFolderId", group: "folders" }),
    ],
    empty: "No folders yet. Attach a folder to an assistant, and it knows all documents below it.",
  }),
  of<Api.Skill>({
    id: "skills", title: "Skills", one: "skill", section: "Knowledge", path: "/v1/skills", items: "items", paged: "whole", scope: "skills:read", id_: "id", columns: ["name", "description", "tags", "readCount"], filters: [{ name: "search" }, { name: "tags" }], create: { path: "/v1/skills/scaffold", first: ["name", "description"] },
    idOf: (it) => it.id ?? it.folder._id, record: { path: "/v1/skills/{id}/tree", of: ({ skill, ...tree }) => ({ ...skill, ...tree }) },
    actions: [
      { title: "Install", method: "POST", path: "/v1/skills/{id}/install", asks: ["agents", "scope"] },
      { title: "Download", method: "GET", path: "/v1/skills/{id}/archive" },
    ],
    empty: "No skills yet. A skill is a document with instructions that a model loads when it needs them.",
  }),
  of<Api.UploadedFile>({
    id: "files", title: "Files", one: "file", section: "Knowledge", path: "/v1/files", items: "items", scope: "files:read", id_: "fileId", idOf: (it) => it.fileId,
    columns: ["name", "fileType", "size", "creationTimestampMs", "expiresAtMs"], filters: [{ name: "search" }, { name: "fileType" }, { name: "tenantId" }], remove: "Its address answers no longer.", empty: "No files yet. Files of messages and documents are shown here.",
  }),
  of<Api.Transcript>({
    id: "speech", title: "Speech", one: "transcript", section: "Knowledge", path: "/v1/speech-to-text/{transcriptId}", scope: "speech:read", id_: "transcriptId", columns: [],
    empty: "No transcript is listed: each is opened by its id.",
  }),
  of<Api.App>({
    id: "integrations", title: "Integrations", one: "app", section: "Connect", path: "/v1/integrations", items: "items", paged: "cursor", scope: "integrations:read", id_: "app", idOf: (it) => it.slug,
    columns: ["name", "description", "toolsCount", "triggersCount"], filters: [{ name: "search" }],
    actions: [{ title: "Make a tool server", method: "POST", path: "/v1/integrations/{app}/servers", asks: ["name", "tools", "connectionId"], shows: true }],
    below: [
      below<Api.AppConnection>({ title: "Connections", path: "/v1/integrations/{app}/connection-status", items: "connections", paged: "whole", columns: ["label", "status", "statusReason", "connectedAt"],
        id: ["connectionId", "id"], actions: [{ title: "Disconnect", method: "DELETE", path: "/v1/integrations/connections/{connectionId}", kind: "danger", confirm: "What uses this connection no longer works." }] }),
      below<Api.EventType>({ title: "Events", path: "/v1/integrations/{app}/triggers", items: "items", paged: "cursor", columns: ["name", "slug", "type", "description"] }),
    ],
    empty: "No app matches.",
  }),
  of<Api.Trigger>({
    id: "triggers", title: "Triggers", one: "trigger", section: "Connect", path: "/v1/triggers", items: "items", scope: "triggers:read", id_: "id",
    columns: ["name", "app", "triggerSlug", "state", "eventCount", "lastEventAt"], filters: [{ name: "agentId" }, { name: "assistantId" }], create: { first: ["name", "toolServerId", "triggerSlug", "agentId", "assistantId", "triggerConfig", "messageTemplate"] }, edit: { first: ["name", "enabled"] },
    remove: "Events no longer start anything.", actions: [{ title: "Test", method: "POST", path: "/v1/triggers/{id}/test", asks: ["payload"], shows: true }],
    below: [below<Api.TriggerDelivery>({ title: "Events", path: "/v1/triggers/{id}/events", items: "items", columns: ["eventId", "outcome", "attempt", "durationMs", "error", "receivedAt"],
      id: ["eventId", "eventId"], actions: [{ title: "Replay", method: "POST", path: "/v1/triggers/{id}/events/{eventId}/replay", shows: true }] })],
    empty: "No triggers yet. A trigger starts an agent or an assistant when something happens in an app, or on a schedule.",
  }),
  of<Api.Webhook>({
    id: "webhooks", title: "Webhooks", one: "webhook", section: "Connect", path: "/v1/webhooks", items: "items", scope: "webhooks:read", id_: "id",
    columns: ["url", "events", "enabled", "lastEditTimestampMs"], nameOf: (it) => it.url, create: { first: ["url", "events", "description"], shows: true }, edit: { first: ["url", "events", "enabled"] },
    remove: "Deliveries that wait are dropped.",
    actions: [
      { title: "Send a test", method: "POST", path: "/v1/webhooks/{id}/test", shows: true },
      { title: "Rotate secret", method: "POST", path: "/v1/webhooks/{id}/rotate-secret", confirm: "For 24 hours deliveries are signed with both secrets.", shows: true },
    ],
    below: [below<Api.WebhookDelivery>({ title: "Deliveries", path: "/v1/webhooks/{id}/deliveries", items: "items", columns: ["eventType", "eventId", "status", "attempts", "nextAttemptMs"],
      id: ["deliveryId", "id"], actions: [{ title: "Send again", method: "POST", path: "/v1/webhooks/{id}/deliveries/{deliveryId}/redeliver" }] })],
    empty: "No webhooks yet. A webhook tells your backend what happens here, signed.",
  }),
  of<Api.McpProfile>({
    id: "mcp", title: "MCP profiles", one: "profile", section: "Connect", path: "/v1/mcp-gateway/profiles", items: "items", scope: "mcp-gateway:read", id_: "id",
    columns: ["name", "slug", "visibility", "exposeMode", "lastEditTimestampMs"], create: { first: ["name", "slug", "visibility", "servers"] }, edit: { first: ["name", "visibility", "servers", "exposeMode"] }, remove: "Its grants go with it.",
    below: [
      below<Element<"/v1/mcp-gateway/profiles/{id}/tools">>({ title: "Tools", path: "/v1/mcp-gateway/profiles/{id}/tools", paged: "whole", columns: ["name", "alias", "enabled", "isNew", "stale", "description"],
        id: ["tool", "name"], actions: [
          { title: "Switch on", method: "PUT", path: "/v1/mcp-gateway/profiles/{id}/tools", bodyOf: (it) => ({ tools: [{ name: it.name, enabled: true }] }), when: (it) => !it.enabled },
          { title: "Switch off", method: "PUT", path: "/v1/mcp-gateway/profiles/{id}/tools", bodyOf: (it) => ({ tools: [{ name: it.name, enabled: false }] }), when: (it) => it.enabled },
        ] }),
    ],
    empty: "No profiles yet. A profile is one MCP endpoint over many tool servers.",
  }),
  of<Api.McpGrant>({
    id: "mcp-grants", title: "MCP grants", one: "grant", section: "Connect", path: "/v1/mcp-gateway/grants", items: "items", scope: "mcp-gateway:read", id_: "id",
    columns: ["subject", "subjectType", "profileId", "toolPolicy", "creationTimestampMs"], filters: [{ name: "subject" }, { name: "profileId" }], isFlat: true, create: { first: ["profileId", "subjectType", "subject", "toolPolicy", "tools"] }, remove: "Whom it names may no longer use the profile by it.",
    empty: "No grants yet. A grant says who may use which tools of a profile.",
  }),
  of<Api.McpGatewayServer>({
    id: "mcp-servers", title: "MCP servers", one: "server", section: "Connect", path: "/v1/mcp-gateway/servers", items: "items", scope: "mcp-gateway:read", id_: "toolServerId", idOf: (it) => it.toolServerId,
    columns: ["name", "type", "health", "toolCount", "lastRefreshMs", "lastError"], isFlat: true, actions: [{ title: "Refresh", method: "POST", path: "/v1/mcp-gateway/servers/{toolServerId}/refresh" }],
    empty: "No tool server is shown to MCP clients. Set mcpExposed on one.",
  }),
  of<Api.AuditRow>({
    id: "mcp-audit", title: "MCP audit", one: "call", section: "Connect", path: "/v1/mcp-gateway/audit", items: "items", scope: "mcp-gateway:read", id_: "id", isFlat: true,
    columns: ["timestampMs", "subject", "toolName", "outcome", "durationMs", "errorCode"], filters: [{ name: "subject" }, { name: "profileId" }, { name: "toolServerId" }, { name: "outcome", choices: ["ok", "tool_error", "denied", "upstream_error", "timeout"] }], empty: "Nobody has called a tool yet.",
  }),
  of<Api.Project>({
    id: "projects", title: "Projects", one: "project", section: "Access", path: "/v1/projects", items: "projects", scope: "projects:read", id_: "id",
    columns: ["name", "identifier", "visibility", "archived", "lastEditTimestampMs"], filters: [{ name: "archived", choices: ["true"], none: "Not archived", label: "Archived, too" }], create: { first: ["name", "identifier", "description", "visibility"] }, edit: { first: ["name", "description", "visibility", "archived"] }, remove: "It is archived; what is in it keeps working.",
    below: [below<Api.Member>({ title: "Members", path: "/v1/projects/{id}/members", paged: "whole", columns: ["userUID", "email", "role", "addedTimestampMs"],
      id: ["userUID", "userUID"], actions: [{ title: "Remove", method: "DELETE", path: "/v1/projects/{id}/members/{userUID}", kind: "danger", confirm: "They no longer see what is in the project." }] })],
    actions: [{ title: "Add a member", method: "POST", path: "/v1/projects/{id}/members", asks: ["userUID", "role"] }],
    empty: "No projects yet. A project keeps agents, assistants and documents of a team together.",
  }),
  of<Api.Tenant>({
    id: "tenants", title: "Tenants", one: "tenant", section: "Access", path: "/v1/tenants", items: "items", scope: "tenants:read", id_: "tenantId", idOf: (it) => it.tenantId,
    columns: ["displayName", "tenantId", "tierId", "blocked", "subtenantsCount", "lastSeenAt"], nameOf: (it) => it.displayName || it.tenantId, filters: [{ name: "search" }], create: { first: ["tenantId", "displayName", "email", "tierId"] }, edit: { first: ["displayName", "email", "domain"] }, remove: "Chats and history stay; its sessions and memory go.",
    actions: [
      { title: "Change tier", method: "POST", path: "/v1/tenant-admin/{tenantId}/tier", asks: ["tierId", "reason", "resetUsage"] },
      { title: "Replace own limits", method: "PUT", path: "/v1/tenant-admin/{tenantId}/usage-limits", asks: ["rules"] },
      { title: "Reset usage", method: "POST", path: "/v1/tenant-admin/{tenantId}/usage-limits/reset", confirm: "The running windows begin at zero again." },
      { title: "Add usage", method: "POST", path: "/v1/tenant-admin/{tenantId}/add-usage", asks: ["tokens", "cost", "source", "reason"], shows: true },
    ],
    below: [
      below<Api.Subtenant>({ title: "Users", path: "/v1/tenants/{tenantId}/subtenants", items: "items", columns: ["displayName", "subtenantId", "email", "lastSeenAt"],
        id: ["subtenantId", "subtenantId"], actions: [
          { title: "Change tier", method: "POST", path: "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/tier", asks: ["tierId", "reason", "resetUsage"] },
          { title: "Reset usage", method: "POST", path: "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/usage-limits/reset", confirm: "The running windows begin at zero again." },
          { title: "Add usage", method: "POST", path: "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/add-usage", asks: ["tokens", "cost", "source", "reason"], shows: true },
          { title: "Audit", method: "GET", path: "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/audit", shows: true },
          { title: "Delete", method: "DELETE", path: "/v1/tenants/{tenantId}/subtenants/{subtenantId}", kind: "danger", confirm: "Chats and history stay; its sessions and memory go." },
        ] }),
      { title: "Own limits", path: "/v1/tenant-admin/{tenantId}/usage-limits", items: "rules", paged: "whole", columns: ["scope", "metric", "limit", "windowEvery", "windowUnit", "subtenantId"] },
      below<Api.AuditEntry>({ title: "Audit", path: "/v1/tenant-admin/{tenantId}/audit", items: "items", columns: ["action", "from", "to", "reason", "userUID", "timestampMs"] }),
    ],
    empty: "No tenants yet. A tenant is a customer of yours; it is registered by its first message.",
  }),
  of<Api.Tier>({
    id: "tiers", title: "Tiers", one: "tier", section: "Access", path: "/v1/tenant-usage/tiers", paged: "whole", scope: "tenant-usage:read", id_: "tierId", idOf: (it) => it.tierId, isFlat: true,
    columns: ["name", "tierId", "rules", "isDefault", "lastEditTimestampMs"], create: { path: "/v1/tenant-admin/tiers", first: ["tierId", "name", "rules", "isDefault"] },
    actions: [
      { title: "Replace", method: "PUT", path: "/v1/tenant-admin/tiers/{tierId}", asks: ["name", "description", "rules", "isDefault", "excludedAssistants", "excludedAgents"] },
      { title: "Delete", method: "DELETE", path: "/v1/tenant-admin/tiers/{tierId}", kind: "danger", confirm: "Tenants that have it keep it from being deleted." },
    ],
    empty: "No tiers yet. A tier says how much its tenants may use, in tokens or money, by hour, day, week or month.",
  }),
  of<Api.ApiKey>({
    id: "keys", title: "API keys", one: "key", section: "Access", path: "/v1/api-keys", items: "items", scope: "keys:read", id_: "id",
    columns: ["name", "kind", "last4", "disabled", "lastUsedTimestampMs", "expiresAtMs"], create: { first: ["name", "preset", "projectIds", "allowedEndpoints", "expiresAtMs"], shows: true }, edit: { first: ["name", "disabled", "allowedEndpoints"] }, remove: "What uses it is shut out at once.",
    actions: [{ title: "Rotate", method: "POST", path: "/v1/api-keys/{id}/rotate", asks: ["graceSeconds"], shows: true }],
    empty: "No keys.",
  }),
  of<Api.TenantSession>({
    id: "sessions", title: "Sessions", one: "session", section: "Access", path: "/v1/tenant-sessions", items: "items", scope: "tenant-sessions:read", id_: "sessionId", idOf: (it) => it.sessionId, isFlat: true,
    columns: ["tenantId", "subtenantId", "apiKeyId", "creationTimestampMs", "expiresAt"], filters: [{ name: "tenantId" }], remove: "It is shut out at once.", empty: "No sessions. Your backend makes one for each end user, with POST /v1/tenant-sessions.",
  }),
  of<Api.User>({
    id: "users", title: "Users", one: "user", section: "Access", path: "/v1/users", items: "items", scope: "admin", id_: "userUID", idOf: (it) => it.userUID,
    columns: ["email", "name", "role", "disabled", "lastEditTimestampMs"], nameOf: (it) => it.email ?? it.userUID, create: { first: ["email", "password", "name", "role"] }, edit: { first: ["email", "name", "role", "disabled", "password"] }, remove: "What they granted ends, and keys they made open nothing.", empty: "No users.",
  }),
  of<Api.OAuthClient>({
    id: "oauth-clients", title: "OAuth clients", one: "client", section: "Access", path: "/v1/oauth-clients", items: "items", scope: "admin", id_: "id",
    columns: ["name", "clientId", "confidential", "redirectUris", "lastEditTimestampMs"], create: { first: ["name", "clientId", "redirectUris", "confidential", "scopes"], shows: true }, edit: { first: ["name", "redirectUris", "scopes"], without: ["clientId", "confidential"] }, remove: "What users granted it ends.",
    empty: "No OAuth clients yet. Users let a client act for them.",
  }),
];

export const group = (id: string): Group | undefined => GROUPS.find((group) => group.id === id);

export const idOf = (group: Group, record: Record_): string => String(group.idOf?.(record) ?? record._id ?? record.id);

export const nameOf = (group: Group, record: Record_): ComponentChildren => group.nameOf?.(record) ?? record.name ?? idOf(group, record);

type Call = `${Action["method"]} ${Path}`;

/// Calls of whoever shows a chat.
const OF_CHATS: Call[] = ["POST /v1/assistants/{identifier}/messages", "POST /v1/files/upload", ...(["stop", "tool-response", "feedback"] as const).map((what): Call => `POST /v1/assistants/{identifier}/chats/{chatUid}/${what}`)];

/// Calls of pages beside those that their groups name.
const MORE: Record<string, Call[]> = {
  home: ["POST /v1/agents", "POST /v1/assistants/{identifier}/messages"],
  assistants: [...OF_CHATS, "GET /v1/memory/assistants/{identifier}/core", "POST /v1/memory/assistants/{identifier}/core", "PATCH /v1/memory/assistants/{identifier}/core/{entryId}", "DELETE /v1/memory/assistants/{identifier}/core/{entryId}"],
  agents: ["POST /v1/agents/{agentId}/threads", "GET /v1/agents/agents/{agentId}/costs/daily", "GET /v1/agents/agents/{agentId}/evaluation-config", "PUT /v1/agents/agents/{agentId}/evaluation-config"],
  chats: [...OF_CHATS, "POST /v1/assistants/{identifier}/chats/{chatUid}/compact", "PATCH /v1/assistants/{identifier}/chats/{chatUid}", "DELETE /v1/assistants/{identifier}/chats/{chatUid}"],
  threads: ["DELETE /v1/agents/threads/{threadId}", ...(["pause", "resume", "complete", "approval", "messages", "evaluate", "feedback"] as const).map((what): Call => `POST /v1/agents/threads/{threadId}/${what}`)],
  "tool-servers": ["GET /v1/tool-servers/{toolServerId}/tools", "POST /v1/tool-servers/{toolServerId}/tools/{toolName}/test", "POST /v1/integrations/servers/{id}/tools/{tool}/test", "PATCH /v1/tool-servers/{toolServerId}/tools/{toolName}", "PATCH /v1/integrations/servers/{id}/tools", "POST /v1/tool-servers/import-openapi"],
  environments: ["GET /v1/environments/{environmentId}/sandbox/status", ...(["exec", "stop"] as const).map((what): Call => `POST /v1/environments/{environmentId}/sandbox/${what}`), ...(["list", "read"] as const).map((what): Call => `POST /v1/environments/{environmentId}/sandbox/files/${what}`)],
  documents: ["POST /v1/documents/search", "POST /v1/documents/upload"],
  skills: ["POST /v1/skills/import"],
  speech: ["POST /v1/speech-to-text"],
  integrations: ["GET /v1/integrations/{app}/auth", "POST /v1/integrations/{app}/connect"],
  projects: ["GET /v1/projects/{id}/costs/daily"],
  tenants: ["GET /v1/tenant-usage/{tenantId}", "GET /v1/tenant-integrations", "POST /v1/tenant-integrations/{app}/connect", "DELETE /v1/tenant-integrations/accounts/{accountId}", "POST /v1/tenant-mcp", "POST /v1/tenant-mcp/{id}/reconnect", "DELETE /v1/tenant-mcp/{id}"],
};

/// What the frame asks of every caller: which lists there are for them, and what they may make.
export const FIRST_CALLS = [
  ...GROUPS.map((of) => `GET ${of.path}`), "POST /v1/assistants/chats", "GET /v1/agents/threads",
  ...GROUPS.filter((of) => of.create).map((of) => `POST ${of.create!.path ?? of.path}`),
];

/// The calls of a page.
export function callsOf(page: string): string[] {
  const of = group(page);
  const one = of && `${of.path}/{${of.id_}}`;
  const named = of ? [of.create && `POST ${of.create.path ?? of.path}`, of.edit && `PATCH ${one}`, of.remove && `DELETE ${one}`] : [];
  const below = (of?.below ?? []).flatMap((rows) => [`GET ${rows.path}`, ...(rows.actions ?? []).map(callOf)]);
  return [...named.filter((call) => !!call), ...(of?.actions ?? []).map(callOf), ...below, ...(MORE[page] ?? [])] as string[];
}

export const callOf = (action: Pick<Action, "method" | "path">): string => `${action.method} ${action.path}`;

/// Whether the caller sees a group at all.
export const isOpen = (group: Group): boolean => may(group.scope, `GET ${group.path}`);

/// An address with the ids of a record in it.
export const fill = (path: string, ids: Record_): string => path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(String(ids[name] ?? "")));

const rowsOf = (answer: any, items?: string): Record_[] => (items ? answer[items] : Array.isArray(answer) ? answer : (answer.items ?? []));

/// A page of a list, however its group pages.
export async function page(of: Pick<Group | Below, "items" | "paged">, path: string, query: Query, offset: number, limit: number, signal?: AbortSignal): Promise<Page<Record_>> {
  if (of.paged === "whole") {
    const rows = rowsOf(await get(withQuery(path, query), {}, signal), of.items);
    return { rows: rows.slice(offset, offset + limit), total: rows.length };
  }
  if (of.paged === "cursor") {
    const rows: Record_[] = [];
    let cursor: string | undefined;
    let total = 0;
    do {
      const answer = await get(path, { ...query, limit: 100, cursor }, signal);
      rows.push(...rowsOf(answer, of.items));
      cursor = answer.nextCursor;
      total = answer.totalItems ?? answer.total ?? rows.length;
    } while (cursor && rows.length < offset + limit);
    return { rows: rows.slice(offset, offset + limit), total };
  }
  const answer = await get(path, { ...query, limit, offset }, signal);
  const rows = rowsOf(answer, of.items);
  return { rows, total: answer.total ?? rows.length };
}
