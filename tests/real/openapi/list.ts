// What a backend in TypeScript writes against the generated types.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
const made = await client.POST("/v1/assistants", { body: { name: "Guide", identifier: "guide" } });
if (made.error) throw new Error(made.error.message);
const { data, error } = await client.GET("/v1/assistants", { params: { query: { search: "guide" } } });
if (error) throw new Error(error.message);
const names: string[] = data.map((assistant) => assistant.identifier);
console.log(names.join(" "));
