// What the conformance suite of the MCP project needs around a server that is a gateway: an upstream with the tools that
// its scenarios call, and a door that adds the credential which the suite does not know of.
// Arguments: port of the upstream, port of the door, address behind the door, credential.
import crypto from "node:crypto";
import http from "node:http";

const [upstream, door, target, key] = process.argv.slice(2);
const META = "io.modelcontextprotocol/";
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
const secret = crypto.randomBytes(32);

const address = {
  $anchor: "addressDef",
  type: "object",
  properties: { street: { type: "string" }, city: { type: "string" } },
};
const schema = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: { address },
  properties: {
    name: { type: "string" },
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: { type: "string" },
    email: { type: "string" },
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: PIXEL, mimeType: "image/png" };
const resource = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });
const elicit = (message, name) => ({
  method: "elicitation/create",
  params: {
    mode: "form",
    message,
    requestedSchema: { type: "object", properties: { [name]: { type: "string" } }, required: [name] },
  },
});
const sample = (said) => ({
  method: "sampling/createMessage",
  params: { messages: [{ role: "user", content: text(said) }], maxTokens: 100 },
});
const roots = { method: "roots/list", params: {} };
const seal = (state) => `${state}.${crypto.createHmac("sha256", secret).update(state).digest("hex")}`;
const opened = (sealed) => (sealed && seal(sealed.split(".")[0]) === sealed ? sealed.split(".")[0] : undefined);

/** Asks until each key was answered with an object. */
const asking = (requests, state, done) => (params) => {
  const given = params.inputResponses ?? {};
  const isThere = Object.keys(requests).every((key) => given[key] && typeof given[key] === "object");
  if (isThere && (!state || opened(params.requestState) === state)) return { content: [text(done(given))] };
  if (params.requestState && opened(params.requestState) === undefined) throw new Error("the state was changed");
  return { resultType: "input_required", inputRequests: requests, ...(state && { requestState: seal(state) }) };
};

const tools = {
  test_simple_text: () => ({ content: [text("This is a simple text response for testing.")] }),
  test_image_content: () => ({ content: [image] }),
  test_audio_content: () => ({ content: [{ type: "audio", data: SOUND, mimeType: "audio/wav" }] }),
  test_embedded_resource: () => ({ content: [resource("test://embedded-resource", "text/plain", "This is embedded.")] }),
  test_multiple_content_types: () => ({
    content: [text("Multiple content types test:"), image, resource("test://mixed", "application/json", "{}")],
  }),
  test_error_handling: () => ({ isError: true, content: [text("This tool intentionally returns an error for testing")] }),
  test_tool_with_progress: () => ({ progress: [0, 50, 100], content: [text("done")] }),
  test_custom_headers: (params, headers) => {
    const given = headers["mcp-param-region"];
    if (given !== params.arguments?.region) throw { code: -32020, message: `Mcp-Param-Region is ${given}` };
    return { content: [text(`in ${given}`)] };
  },
  json_schema_2020_12_tool: () => ({ content: [text("fits")] }),
  test_logging_tool: () => ({ logs: ["logged"], content: [text("logged")] }),
  test_tool_with_logging: () => ({
    logs: ["Tool execution started", "Tool processing data", "Tool execution completed"], content: [text("logged")],
  }),
  test_streaming_elicitation: asking({ name: elicit("Who?", "name") }, undefined, () => "done"),
  test_missing_capability: (params) => {
    if (!params._meta?.[`${META}clientCapabilities`]?.sampling) throw { code: -32021, sampling: true };
    return { content: [text("sampled")] };
  },
  test_input_required_result_elicitation: asking(
    { user_name: elicit("What is your name?", "name") }, undefined, (given) => `Hello, ${given.user_name.content?.name}!`,
  ),
  test_input_required_result_sampling: asking(
    { capital_question: sample("What is the capital of France?") }, undefined,
    (given) => given.capital_question.content?.text ?? "",
  ),
  test_input_required_result_list_roots: asking(
    { client_roots: roots }, undefined, (given) => JSON.stringify(given.client_roots.roots),
  ),
  test_input_required_result_request_state: asking({ confirm: elicit("Really?", "ok") }, "one", () => "state-ok"),
  test_input_required_result_tampered_state: asking({ confirm: elicit("Really?", "ok") }, "two", () => "state-ok"),
  test_input_required_result_multiple_inputs: asking(
    { user_name: elicit("What is your name?", "name"), greeting: sample("Generate a greeting"), client_roots: roots },
    "three", () => "all there",
  ),
  test_input_required_result_multi_round: (params) => {
    const state = opened(params.requestState);
    if (state === "round2" && params.inputResponses?.step2) return { content: [text("both there")] };
    const next = state === "round1" && params.inputResponses?.step1 ? 2 : 1;
    const asked = next === 1 ? elicit("Step 1: What is your name?", "name") : elicit("Step 2: What color?", "color");
    return { resultType: "input_required", inputRequests: { [`step${next}`]: asked }, requestState: seal(`round${next}`) };
  },
  test_input_required_result_capabilities: (params) => {
    const can = params._meta?.[`${META}clientCapabilities`] ?? {};
    const inputRequests = { ...(can.sampling && { s: sample("?") }), ...(can.elicitation && { e: elicit("?", "x") }) };
    return { resultType: "input_required", inputRequests };
  },
};

/** What changes, and who is told of it. */
const listeners = new Set();
let changes = 0;
tools.test_trigger_tool_change = () => {
  changes += 1;
  for (const tell of listeners) tell();
  return { content: [text("changed")] };
};

const region = { type: "string", "x-mcp-header": "Region" };
const schemas = {
  json_schema_2020_12_tool: schema,
  test_custom_headers: { type: "object", properties: { region }, required: ["region"] },
};

const info = { name: "conformance-upstream", version: "1.0.0" };

async function answer(message, headers, response) {
  const reply = (body) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, ...body }));
  };
  const params = message.params ?? {};
  const whole = (result) => reply({ result: { resultType: "complete", ...result } });
  if (message.method === "server/discover") {
    return whole({
      supportedVersions: ["2026-07-28"], capabilities: { tools: { listChanged: true } }, ttlMs: 0, cacheScope: "private",
      _meta: { [`${META}serverInfo`]: info },
    });
  }
  if (message.method === "tools/list") {
    const listed = [...Object.keys(tools), ...(changes ? [`test_new_${changes}`] : [])].map((name) => ({
      name, description: `Tests ${name}`, inputSchema: schemas[name] ?? { type: "object", properties: {} },
    }));
    return whole({ tools: listed, ttlMs: 0, cacheScope: "private" });
  }
  if (message.method === "subscriptions/listen") {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const tell = (method, params) => {
      const _meta = { [`${META}subscriptionId`]: message.id };
      response.write(`data: ${JSON.stringify({ jsonrpc: "2.0", method, params: { ...params, _meta } })}\n\n`);
    };
    tell("notifications/subscriptions/acknowledged", { notifications: { toolsListChanged: true } });
    const changed = () => tell("notifications/tools/list_changed", {});
    listeners.add(changed);
    return response.on("close", () => listeners.delete(changed));
  }
  if (message.method !== "tools/call" || !tools[params.name]) {
    return reply({ error: { code: -32601, message: "not here" } });
  }
  try {
    const { progress = [], logs = [], ...result } = tools[params.name](params, headers);
    if (!progress.length && !logs.length) return whole(result);
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const send = (body) => response.write(`data: ${JSON.stringify({ jsonrpc: "2.0", ...body })}\n\n`);
    for (const data of logs) send({ method: "notifications/message", params: { level: "info", data } });
    for (const done of progress) {
      const told = { progressToken: params._meta?.progressToken, progress: done, total: 100 };
      send({ method: "notifications/progress", params: told });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    send({ id: message.id, result: { resultType: "complete", ...result } });
    response.end();
  } catch (error) {
    const data = error.sampling ? { data: { requiredCapabilities: { sampling: {} } } } : {};
    reply({ error: { code: error.code ?? -32602, message: error.message ?? "sampling is required", ...data } });
  }
}

http.createServer((request, response) => {
  let body = "";
  request.on("data", (chunk) => (body += chunk));
  request.on("end", () => {
    if (request.method !== "POST") return response.writeHead(405).end();
    const message = JSON.parse(body);
    if (message.id === undefined) return response.writeHead(202).end();
    answer(message, request.headers, response);
  });
}).listen(Number(upstream), "127.0.0.1");

http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${key}` };
  const outgoing = http.request(target, { method: request.method, headers }, (answered) => {
    response.writeHead(answered.statusCode, answered.headers);
    answered.pipe(response);
  });
  outgoing.on("error", () => response.destroy());
  response.on("close", () => outgoing.destroy());
  request.pipe(outgoing);
}).listen(Number(door), "127.0.0.1");
