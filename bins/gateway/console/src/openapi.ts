// The OpenAPI document of the server, from which forms are made: a field that it names is a field of the form.
import { useLoad } from "./parts/basic.tsx";

interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  allOf?: Schema[];
  oneOf?: Schema[];
  anyOf?: Schema[];
  format?: string;
  default?: unknown;
  readOnly?: boolean;
}

interface Document {
  paths: Record<string, Record<string, any>>;
  components: { schemas: Record<string, Schema> };
}

let document_: Promise<Document> | null = null;

function document(): Promise<Document> {
  document_ ??= fetch("/v1/openapi.json").then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`The OpenAPI document cannot be read: ${answer.status}.`))));
  document_.catch(() => (document_ = null));
  return document_;
}

/// A schema without references, its parts put together; of several forms that a value may have, the first that says something.
function resolved(schema: Schema, schemas: Record<string, Schema>, depth = 0): Schema {
  if (depth > 8) return {};
  const next = (part: Schema) => resolved(part, schemas, depth + 1);
  if (schema.$ref) {
    const named = next(schemas[schema.$ref.split("/").at(-1)!] ?? {});
    return { ...named, ...(schema.description && { description: schema.description }), required: [...(named.required ?? []), ...(schema.required ?? [])] };
  }
  const forms = schema.oneOf ?? schema.anyOf;
  if (forms) {
    const values = forms.filter((form) => form.type !== "null").map(next);
    const [first = {}] = values;
    const constants = values.flatMap((value) => (value.enum ?? []));
    return { ...first, ...(values.length > 1 && constants.length >= values.length && { enum: constants }), description: schema.description ?? first.description };
  }
  if (!schema.allOf) return schema;
  const parts = schema.allOf.map(next);
  return {
    ...schema,
    type: parts.find((part) => part.type)?.type ?? "object",
    properties: Object.assign({}, ...parts.map((part) => part.properties)),
    required: [...parts.flatMap((part) => part.required ?? []), ...(schema.required ?? [])],
    enum: parts.find((part) => part.enum)?.enum,
  };
}

export interface Field {
  /// Where it stands in the body, such as `coreMemory.scope`.
  path: string;
  name: string;
  kind: "text" | "long" | "number" | "bool" | "choice" | "list" | "json" | "group";
  /// The fields of a group.
  fields: Field[];
  choices: string[];
  description: string;
  required: boolean;
  /// `null` unsets it.
  nullable: boolean;
}

const LONG = /^(presets|description|markdownContent|message|initScript|startCommand|content|summary|instructions)$/;

function field(path: string, schema: Schema, required: boolean, schemas: Record<string, Schema>): Field {
  const name = path.split(".").at(-1)!;
  const plain = resolved(schema, schemas);
  const types = [plain.type ?? "object"].flat().filter((type) => type !== "null");
  const items = plain.items && resolved(plain.items, schemas);
  const choices = (plain.enum ?? []).filter((value) => typeof value === "string") as string[];
  const kind = choices.length ? "choice"
    : types.includes("string") ? (LONG.test(name) ? "long" : "text")
    : types.includes("boolean") ? "bool"
    : types.includes("integer") || types.includes("number") ? "number"
    : types.includes("array") && [items?.type].flat().includes("string") ? "list"
    : plain.properties && !path.includes(".") ? "group"
    : "json";
  const fields = kind === "group" ? fieldsIn(plain, schemas, path + ".") : [];
  const nullable = [plain.type].flat().includes("null") || !!(schema.oneOf ?? schema.anyOf)?.some((form) => form.type === "null");
  return { path, name, kind, fields, choices, description: plain.description ?? "", required, nullable };
}

function fieldsIn({ properties = {}, required = [] }: Schema, schemas: Record<string, Schema>, above = ""): Field[] {
  const open = Object.entries(properties).filter(([, schema]) => !schema.readOnly);
  return open.map(([name, schema]) => field(above + name, schema, required.includes(name), schemas));
}

/// Fields of the body that an operation takes.
async function fieldsOf(method: string, path: string): Promise<Field[]> {
  const { paths, components } = await document();
  const content = paths[path]?.[method.toLowerCase()]?.requestBody?.content;
  const body = content?.["application/json"]?.schema as Schema | undefined;
  if (!body) return [];
  return fieldsIn(resolved(body, components.schemas), components.schemas);
}

export const useFields = (method: string, path: string) => useLoad(() => fieldsOf(method, path), [method, path]);
