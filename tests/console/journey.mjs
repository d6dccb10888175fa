// From the first start to a full quota, as a person goes.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { check, complaints, browser, key, link, open, picture, settled, step, to, until, url, withKey } from "./browser.mjs";

const api = async (method, path, body) => {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const answer = await fetch(`${url}/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};

const page = await open({ permissions: ["clipboard-write"] });
/// A field of the form in sight, by its name.
const field = (name) => page.locator(".form").getByLabel(new RegExp(`^${name}( \\*)?$`)).filter({ visible: true }).first();
const press = (name) => page.getByRole("button", { name, exact: true }).last().click();

await step("the link of the first start logs in, and no token is stored", async () => {
  await page.goto(link);
  await press("Log in with this link");
  await page.waitForSelector(".tile");
  assert.equal(await page.title(), "Home · Console");
  assert.ok(!page.url().includes("link="), "the link is not left in the address");
  await settled(page);
  const stored = await page.evaluate(() => [Object.keys(localStorage).sort().reverse(), Object.keys(sessionStorage), document.cookie]);
  assert.deepEqual(stored, [["console.theme", "console.returns"], [], ""], "nothing that a script could take");
  const first = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  // Who comes for the first time has nothing of it in a cache.
  const other = await open();
  await other.addInitScript(() => {
    const drawn = () => document.querySelector("#key") && (window.interactiveAt ??= performance.now());
    new MutationObserver(drawn).observe(document, { childList: true, subtree: true });
  });
  await other.goto(url);
  await other.waitForSelector("#key");
  const interactive = await other.evaluate(() => window.interactiveAt);
  await other.close();
  const files = ["/", "/console/console.js", "/console/console.css"].map((path) => fetch(url + path, { headers: { Accept: "text/html" } }));
  const size = (await Promise.all(files)).reduce((sum, file) => sum + Number(file.headers.get("content-length")), 0);
  console.log(`  first paint after ${Math.round(first)} ms, interactive after ${Math.round(interactive)} ms; ${Math.round(size / 1024)} KiB in all`);
  assert.ok(interactive < 2500, `interactive after ${interactive} ms`);
  assert.ok(size > 10_000 && size < 250 * 1024);
});

await step("an assistant is made, and what is wrong is said at its field", async () => {
  await to(page, "#/assistants");
  await press("New assistant");
  await field("Name").fill("Helper");
  // What was typed is not thrown away without a question.
  await press("Close");
  await page.waitForSelector("dialog:has-text('What you typed is lost.')");
  await press("No, keep it");
  await field("Identifier").fill("Not Good!");
  await press("Make assistant");
  await page.waitForSelector(".field.wrong [role=alert]");
  assert.match(await page.locator(".field.wrong [role=alert]").first().textContent(), /identifier/);
  await check(page, "a form with a mistake");
  await field("Identifier").fill("helper");
  await field("Presets").fill("You help.");
  await page.getByRole("checkbox", { name: "Time", exact: true }).check();
  await field("Approval tools").fill("current_time");
  await press("Make assistant");
  await page.waitForSelector("h1:has-text('Helper')");
});

await step("a tool asks for approval in the playground, runs, and the reply grows", async () => {
  await page.getByLabel("Message").fill("/tool current_time {}\nWhat time is it?");
  await page.getByLabel("Message").press("Enter");
  await page.waitForSelector("text=Waits for your approval");
  const isUncovered = (button) => {
    const { left, top, width, height } = button.getBoundingClientRect();
    return button.contains(document.elementFromPoint(left + width / 2, top + height / 2));
  };
  assert.ok(await page.getByRole("button", { name: "Approve" }).evaluate(isUncovered), "nothing lies over the button");
  await check(page, "an approval");
  await picture(page, "approval");
  await press("Approve");
  await page.waitForSelector(".message.assistant:has-text('Demo reply: What time is it?') .about");
  await page.locator(".tool summary").first().click();
  assert.match(await page.locator(".tool").first().textContent(), /timestampMs|iso|UTC/i, "the result is there");
  await picture(page, "playground");
  await check(page, "playground");
  await press("Bad");
  await page.getByLabel("Why it is so").fill("The zone is missing");
  await page.getByLabel("Why it is so").press("Enter");
  const { histories } = await api("POST", "/assistants/chats", { assistantIdentifier: "helper" });
  const given = () => api("GET", `/assistants/helper/chats/${histories[0].chatUID}/feedback`);
  await until("it is stored", async () => (await given())[0]?.feedbackComment === "The zone is missing");
  await press("API calls");
  assert.match(await page.locator("dialog pre").textContent(), /^curl -X/);
  await press("Python");
  assert.match(await page.locator("dialog pre").textContent(), /requests/);
  await check(page, "API calls");
  await page.keyboard.press("Escape");
});

await step("five hundred words a second are shown without a dropped frame that a person would see", async () => {
  await press("New chat");
  await page.evaluate(() => {
    window.gaps = [];
    let last = performance.now();
    const frame = (now) => (window.gaps.push(now - last), (last = now), requestAnimationFrame(frame));
    requestAnimationFrame(frame);
  });
  await page.getByLabel("Message").fill("/delay 1ms\n/tokens 1000");
  await page.getByLabel("Message").press("Enter");
  await page.waitForSelector(".message.assistant:has-text('word1000') .about");
  const gaps = await page.evaluate(() => window.gaps.sort((a, b) => a - b));
  const within = (share) => Math.round(gaps[Math.floor(gaps.length * share)]);
  console.log(`  ${gaps.length} frames, 95 % within ${within(0.95)} ms`);
  assert.ok(within(0.5) < 100, `half of the frames come late: ${within(0.5)} ms`);
  const left = () => page.evaluate(() => document.documentElement.scrollHeight - innerHeight - scrollY);
  assert.ok((await left()) < 130, "what is said last is in sight");
  // The chat is in the address: it is there again behind another tab of the record.
  await page.getByRole("tab", { name: "JSON" }).click();
  await page.getByRole("tab", { name: "Playground" }).click();
  await page.waitForSelector(".message.assistant:has-text('word1000')");
});

await step("one of two calls is approved, and what was thought of an answer is shown again", async () => {
  await press("New chat");
  await page.getByLabel("Message").fill("/tool current_time {}\n/tool current_time {\"timezone\":\"Europe/Berlin\"}\nTwice?");
  await page.getByLabel("Message").press("Enter");
  await page.waitForSelector("text=Waits for your approval");
  await page.getByRole("checkbox", { name: "Approve current_time" }).last().uncheck();
  await check(page, "an approval of two calls");
  await press("Approve 1 of 2");
  await page.waitForSelector(".message.assistant:has-text('Demo reply: Twice?') .about");
  const results = await page.locator(".tool").allTextContents();
  assert.deepEqual(results.map((text) => text.includes("REJECTED")), [false, true], results.join());
  const { histories } = await api("POST", "/assistants/chats", { assistantIdentifier: "helper" });
  await to(page, `#/chats/helper/${histories.at(-1).chatUID}`);
  await page.waitForSelector(".thumbs [aria-pressed=true]:has-text('Bad')");
  assert.equal(await page.getByLabel("Why it is so").inputValue(), "The zone is missing");
  await check(page, "feedback");
  await press("Good");
  await page.waitForSelector(".thumbs [aria-pressed=true]:has-text('Good')");
  const [given] = await api("GET", `/assistants/helper/chats/${histories.at(-1).chatUID}/feedback`);
  assert.deepEqual([given.feedback, given.feedbackComment], [true, "The zone is missing"], "what is not changed is kept");
  await to(page, "#/assistants/helper");
  await page.getByRole("tab", { name: "Playground" }).click();
});

await step("a reply is stopped, and a file that is dropped goes with the next message", async () => {
  await press("New chat");
  await page.getByLabel("Message").fill("/wait 60s\nLater");
  await page.getByLabel("Message").press("Enter");
  await press("Stop");
  await page.waitForSelector(".composer button:has-text('Stop')", { state: "detached" });
  const files = await page.evaluateHandle(() => {
    const files = new DataTransfer();
    files.items.add(new File(["Two plus two"], "sum.txt", { type: "text/plain" }));
    return files;
  });
  await page.dispatchEvent(".composer", "drop", { dataTransfer: files });
  await page.waitForSelector(".composer .files li:has-text('sum.txt')");
  await page.getByLabel("Message").fill("What is it?");
  await page.getByLabel("Message").press("Enter");
  await page.waitForSelector(".message.user .files a:has-text('sum.txt')");
  await page.waitForSelector(".message.assistant:has-text('What is it?') .about");
});

await step("what an assistant remembers of an end user is read, pinned, changed and forgotten", async () => {
  await api("POST", "/assistants", { name: "Mindful", identifier: "mindful", coreMemory: { enabled: true, scope: "subtenant" } });
  await to(page, "#/assistants/mindful?tab=memory");
  await page.getByLabel("Tenant", { exact: true }).fill("acme");
  await page.getByLabel("End user").fill("ann");
  await press("Show memory");
  await page.getByLabel("What to remember").fill("Likes short answers");
  await page.getByLabel("Section").fill("profile");
  await press("Remember");
  await page.waitForSelector(".entries li:has-text('profile')");
  await press("Pin");
  await page.waitForSelector(".entries li:has-text('pinned')");
  await press("Change");
  await page.getByLabel("What is remembered").fill("Likes long answers");
  await press("Save");
  await page.waitForSelector(".entries p:has-text('Likes long answers')");
  await check(page, "memory");
  await picture(page, "memory");
  await press("Forget");
  await page.waitForSelector("text=Nothing is remembered yet");
  await page.getByRole("checkbox", { name: "also what was forgotten" }).check();
  await page.waitForSelector(".entries li:has-text('forgotten')");
  const { entries } = await api("GET", "/memory/assistants/mindful/core?tenantId=acme");
  assert.deepEqual(entries, [], "it was of the end user alone");
  await to(page, "#/assistants/helper");
  await page.getByRole("tab", { name: "Playground" }).click();
});

await step("what a hostile model says is text", async () => {
  await press("New chat");
  const hostile = `/say <img src=x onerror="window.hit=1"> <script>window.hit=1</script> [press](javascript:window.hit=1) ![pixel](https://evil.example/p.png) <a href="javascript:window.hit=1">x</a> <svg onload=window.hit=1> [data](data:text/html,<script>window.hit=1</script>)`;
  await page.getByLabel("Message").fill(hostile);
  await page.getByLabel("Message").press("Enter");
  await page.waitForSelector(".message.assistant .about");
  assert.equal(await page.evaluate(() => window.hit), undefined);
  const inside = page.locator(".message.assistant .markdown");
  assert.equal(await inside.locator("img, script, svg, iframe, [href^='javascript:'], [href^='data:']").count(), 0);
  assert.match(await inside.textContent(), /<script>/, "it is shown as what it is");
});

await step("a thread is started, approved and read as a timeline", async () => {
  await to(page, "#/agents");
  await press("New agent");
  await field("Name").fill("Reporter");
  await page.getByRole("checkbox", { name: "Time", exact: true }).check();
  await field("Approval tools").fill("current_time");
  await press("Make agent");
  await page.waitForSelector("h1:has-text('Reporter')");
  await page.getByRole("tab", { name: "Start" }).click();
  await field("Message").fill("/tool current_time {}\nThe report");
  await press("Start a thread");
  await page.waitForSelector("text=Waits for your approval");
  await press("Approve");
  await page.waitForSelector("h1 .badge:has-text('completed')");
  await page.waitForSelector(".span.state:has-text('completed')");
  const rows = await page.locator(".span .title").allTextContents();
  for (const expected of ["current_time", "paused for approval", "completed"]) assert.ok(rows.some((row) => row.includes(expected)), `${expected} in ${rows}`);
  await page.locator(".span.tool button").click();
  await check(page, "timeline");
  await picture(page, "timeline");
  await page.getByRole("tab", { name: "Explanation" }).click();
  await press("Explain this thread");
  await page.waitForSelector("[role=tabpanel] .markdown");
  await page.getByRole("tab", { name: "Evaluations" }).click();
  await press("Evaluate");
  await page.waitForSelector("text=of 10");
  await check(page, "evaluation");
});

await step("a thread is paused, resumed, spoken to, ended and deleted, and shows the thread that works for it", async () => {
  const { _id: helper } = await api("POST", "/agents", { name: "Searcher", subAgentConfig: { enabled: true } });
  const { _id: lead } = await api("POST", "/agents", { name: "Lead", assistantSpecialization: { subagentsIds: [helper] } });
  const begin = (message) => api("POST", `/agents/${lead}/threads`, { message });
  const handed = await begin(`/tool hand_off_subagent ${JSON.stringify({ agentId: helper, input: "Look it up" })}\nFound`);
  await to(page, `#/threads/${handed._id}`);
  await page.waitForSelector("h1 .badge:has-text('completed')");
  await page.locator("details.nested summary").click();
  await page.waitForSelector("details.nested .span.state:has-text('completed')");
  await check(page, "a thread within a thread");

  const slow = await begin("/wait 60s\nSlow");
  await to(page, `#/threads/${slow._id}`);
  await press("Pause");
  await page.waitForSelector("[role=status]:has-text('Pauses after this step')");
  await press("Resume");
  await page.waitForSelector("button:has-text('Pause')");
  await page.getByRole("tab", { name: "Messages" }).click();
  await page.getByLabel("Message to the thread").fill("Hurry");
  await press("Send");
  await until("it is taken", async () => (await page.getByLabel("Message to the thread").inputValue()) === "");
  await press("Terminate");
  await press("Yes");
  await page.waitForSelector("h1 .badge:has-text('terminated')");
  await press("Delete");
  await press("Yes");
  await page.waitForSelector("h1:has-text('Runs')");
  assert.ok(!(await api("GET", "/agents/threads")).threads.some((it) => it._id === slow._id));

  const other = await begin("/wait 60s\nSlow");
  await to(page, `#/threads/${other._id}`);
  await press("Complete");
  await page.waitForSelector("h1 .badge:has-text('completed')");
});

await step("an event that came is replayed", async () => {
  const { _id: agentId } = await api("POST", "/agents", { name: "Hooked" });
  const { _id: toolServerId } = await api("POST", "/integrations/webhook/servers", {});
  const trigger = await api("POST", "/triggers", { toolServerId, triggerSlug: "webhook", agentId });
  await to(page, `#/triggers/${trigger._id ?? trigger.id}`);
  await press("Test");
  await page.locator("dialog").getByRole("button", { name: "Test" }).click();
  await page.waitForSelector("dialog:has-text('Answer')");
  await page.keyboard.press("Escape");
  await page.getByRole("tab", { name: "Events" }).click();
  await page.locator(".rows").getByRole("button", { name: "Replay" }).click();
  await page.waitForSelector("dialog:has-text('Answer')");
  await page.keyboard.press("Escape");
  await until("a thread for each", async () => (await api("GET", `/agents/threads?agentId=${agentId}`)).total === 2);
});

await step("a session ends, a member comes and goes", async () => {
  await api("POST", "/tenant-sessions", { tenantId: "visitor" });
  await to(page, "#/sessions?tenantId=visitor");
  await page.locator(".rows").getByRole("button", { name: "Delete" }).click();
  await press("Yes");
  await page.waitForSelector("text=Nothing matches");

  const project = await api("POST", "/projects", { name: "Beta", identifier: "beta" });
  const { userUID } = await api("POST", "/users", { email: "bo@example.com", password: "correct horse battery", name: "Bo" });
  await to(page, `#/projects/${project._id}?tab=members`);
  await press("Add a member");
  await field("User UID").fill(userUID);
  await field("Role").selectOption("viewer");
  await page.locator("dialog").getByRole("button", { name: "Add a member" }).click();

  // Who reads in a project is offered nothing that changes what is in it, and a key of the project nothing of its owner's.
  const agent = await api("POST", "/agents", { name: "Of Beta", projectId: project._id });
  const viewer = await open();
  await viewer.goto(url);
  await viewer.getByRole("button", { name: "Log in", exact: true }).click();
  await viewer.fill("#email", "bo@example.com");
  await viewer.fill("[name=password]", "correct horse battery");
  await viewer.locator("[name=password]").press("Enter");
  await viewer.waitForSelector("nav");
  const tabs = (page) => page.getByRole("tab").allTextContents();
  const offered = (page) => page.locator("main header button").allTextContents();
  await to(viewer, `#/agents/${agent._id}`);
  await viewer.waitForSelector("text=Of Beta");
  assert.deepEqual(await offered(viewer), []);
  assert.ok(!(await tabs(viewer)).includes("Settings"));
  // Nor in runs of others, nor on their machines.
  await api("POST", "/assistants", { name: "Beta helper", identifier: "beta-helper", projectId: project._id, coreMemory: { enabled: true } });
  await api("POST", "/assistants/beta-helper/messages", { message: "Hello", chatUid: "of-beta" });
  const threads = await Promise.all([{ message: "Done" }, { message: "Waits", state: "paused" }].map((body) => api("POST", `/agents/${agent._id}/threads`, body)));
  const environment = await api("POST", "/environments", { name: "Beta machines", projectId: project._id });
  await until("it is over", async () => (await api("GET", `/agents/threads/${threads[0]._id}`)).state === "completed");
  for (const hash of [`threads/${threads[0]._id}`, `threads/${threads[1]._id}?tab=messages`, "chats/beta-helper/of-beta", `environments/${environment._id}`]) {
    await to(viewer, `#/${hash}`);
    await viewer.waitForSelector("[role=tab]");
    assert.deepEqual(await offered(viewer), [], hash);
    assert.ok(!(await tabs(viewer)).includes("Terminal"));
    assert.equal(await viewer.getByLabel("Message to the thread").count(), 0);
  }
  await to(viewer, `#/projects/${project._id}`);
  await viewer.waitForSelector("[role=tab]");
  assert.deepEqual(await offered(viewer), []);
  assert.ok(!(await tabs(viewer)).includes("Settings"));
  const edits = await open();
  await withKey(edits, (await api("POST", "/api-keys", { name: "Edits", projectIds: [project._id] })).key);
  await to(edits, `#/projects/${project._id}`);
  await edits.waitForSelector("[role=tab]");
  assert.deepEqual(await offered(edits), []);
  await to(edits, `#/agents/${agent._id}`);
  await edits.waitForSelector("[role=tab]:has-text('Settings')");
  assert.deepEqual(await offered(edits), ["Archive", "Delete"]);
  await api("POST", "/memory/assistants/beta-helper/core?tenantId=t1", { content: "Likes tea" });
  for (const [who, times] of [[viewer, 0], [edits, 1]]) {
    await to(who, "#/assistants/beta-helper?tab=memory");
    await who.getByLabel("Tenant", { exact: true }).fill("t1");
    await who.getByRole("button", { name: "Show memory" }).click();
    await who.getByText("Likes tea").waitFor();
    assert.equal(await who.getByRole("button", { name: "Forget" }).count(), times);
  }

  await page.locator(".rows .tr:has-text('bo@example.com')").getByRole("button", { name: "Remove" }).click();
  await press("Yes");
  await page.waitForSelector(".rows .tr:has-text('bo@example.com')", { state: "detached" });
});

await step("a key is shown once, and rotated", async () => {
  await to(page, "#/keys");
  await press("New key");
  await field("Name").fill("Backend");
  await press("Make key");
  await page.waitForSelector(".secret code");
  const first = await page.locator(".secret code").textContent();
  assert.match(first, /^ak-/);
  await check(page, "a secret");
  await page.keyboard.press("Escape");
  await page.getByRole("link", { name: "Backend" }).click();
  await press("Rotate");
  await page.locator("dialog").getByRole("button", { name: "Rotate" }).click();
  await page.waitForSelector(".secret code");
  const second = await page.locator(".secret code").textContent();
  assert.ok(second !== first && second.startsWith("ak-"));
  await page.keyboard.press("Escape");
});

await step("another prompt answers the same message beside the stored one", async () => {
  await to(page, "#/assistants/helper?tab=compare");
  await page.getByLabel("Other prompt").fill("You help, and are brief.");
  assert.equal(await page.locator(".prompt .new").textContent(), "You help, and are brief.");
  await page.getByLabel("Message").fill("Which of you?");
  await page.getByLabel("Message").press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".sides .message.assistant .about").length === 2);
  await page.getByLabel("Message").fill("And now?");
  await page.getByLabel("Message").press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".sides .message.assistant .about").length === 4);
  await picture(page, "compare");
  await check(page, "compare");
  await to(page, "#/assistants");
  await until("no trial is left", async () => !(await api("GET", "/assistants")).some((one) => one.tags.includes("console-trial")));
});

await step("a page that cannot be shown, a wrong address and a cut stream leave the others alone", async () => {
  await api("POST", "/api-keys", { name: "Far", expiresAtMs: 9007199254740991 });
  await to(page, "#/keys");
  await page.waitForSelector("a:has-text('Far')");
  await to(page, "#/agents/%zz");
  await page.waitForSelector(".failure");
  for (const text of [">".repeat(2000), "_a".repeat(9500), "*".repeat(9500) + "a" + "*".repeat(9500), "a".repeat(19_000) + "@", "1. ".repeat(6000), "a\n-\n".repeat(4700)]) {
    const made = await api("POST", "/documents", { name: "Marks", markdownContent: text });
    const began = Date.now();
    await to(page, `#/documents/${made._id}`);
    await page.waitForSelector("h1:has-text('Marks')");
    assert.ok(Date.now() - began < 15_000, `${text.slice(0, 5)} takes ${Date.now() - began} ms`);
    await api("DELETE", `/documents/${made._id}`);
  }
  let opened = 0;
  await page.route("**/stream?partial=true", (route) => {
    opened += 1;
    return route.fulfill({ status: 200, contentType: "text/event-stream", body: 'event: reconnect\ndata: {"code":"SERVER_ERROR"}\n\n' });
  });
  const chat = await api("POST", "/assistants/default/messages?async=true", { message: "Hello" });
  const began = Date.now();
  await page.goto(`${url}/#/chats/default/${chat.chatUid}`);
  await until("it is opened again", () => opened >= 3);
  assert.ok(Date.now() - began >= 2900, `it waits a second, then two, before it asks again: ${Date.now() - began} ms`);
  await page.unroute("**/stream?partial=true");
});

await step("a document is dropped, found by a passage, and a tool is tried", async () => {
  await to(page, "#/documents");
  await page.locator("input[type=file]").setInputFiles({ name: "handbook.md", mimeType: "text/markdown", buffer: Buffer.from("# Refunds\n\nMoney comes back within thirty days.") });
  await page.waitForSelector("h1:has-text('handbook')");
  await until("it is indexed", async () => (await api("GET", "/documents?search=handbook")).documents[0].status === "ready");
  await to(page, "#/documents");
  await page.getByLabel("Search passages").fill("refunds");
  await press("Search");
  await page.waitForSelector(".passages li:has-text('thirty days')");
  await check(page, "passages");

  const tools = await api("POST", "/tool-servers", { name: "Away", url: "https://away.invalid", toolDefinitions: [{ function: { name: "look", parameters: { type: "object", properties: { at: { type: "string" } } } }, endpoint: "/look" }] });
  await to(page, `#/tool-servers/${tools._id}`);
  await page.locator(".tool summary").click();
  await press("Try it");
  await page.waitForSelector(".tool .badge:has-text('failed')");
  await check(page, "a tool");
  await press("Let it wait for approval");
  await page.waitForSelector(".tool .badge:has-text('needs approval')");
  assert.equal((await api("GET", `/tool-servers/${tools._id}`)).toolDefinitions[0].requiresApproval, true);
  await to(page, "#/tool-servers");
  await press("Import an OpenAPI description");
  await field("Spec").fill(JSON.stringify({ openapi: "3.1.0", info: { title: "Shop", version: "1" }, servers: [{ url: "https://shop.invalid" }], paths: { "/orders": { get: { operationId: "listOrders" } } } }));
  await check(page, "an import");
  await press("Make a tool server");
  await page.waitForSelector("h1:has-text('Shop')");
  await page.waitForSelector(".tool code:has-text('listOrders')");
});

await step("a terminal works on a machine, where this host has any", async () => {
  const box = await api("POST", "/environments", { name: "Workshop" });
  await to(page, `#/environments/${box._id}`);
  await press("Start the machine");
  const started = await page.waitForSelector("input[aria-label=Command], .failure");
  if ((await started.getAttribute("class")) === "failure") {
    assert.match(await started.textContent(), /SANDBOX_UNAVAILABLE/);
    return console.log("  not tried: this host allows no machines");
  }
  const line = page.getByLabel("Command", { exact: true });
  await line.fill("for i in 1 2 3; do echo said $i; done; echo wrong >&2; cd /tmp");
  await line.press("Enter");
  await page.waitForSelector(".terminal:has-text('said 3')");
  await page.waitForSelector(".terminal .stderr:has-text('wrong')");
  await page.waitForSelector(".prompt-line code:has-text('/tmp')");
  await line.press("ArrowUp");
  assert.match(await line.inputValue(), /said/, "what was typed before is there");
  await check(page, "terminal");
  await picture(page, "terminal");
  await press("Stop the machine");
  await page.waitForSelector("button:has-text('Start the machine')");
});

await step("a tool of a profile is switched off, a skill leaves as a file and comes back, a secret is shown once", async () => {
  const tool = { function: { name: "look", parameters: { type: "object" } }, endpoint: "/look" };
  const server = await api("POST", "/tool-servers", { name: "Shown", url: "https://away.invalid", mcpExposed: true, toolDefinitions: [tool] });
  const profile = await api("POST", "/mcp-gateway/profiles", { name: "Everybody", visibility: "account", newToolPolicy: "enabled", servers: [{ toolServerId: server._id }] });
  await to(page, `#/mcp/${profile._id}?tab=mine`);
  await page.getByRole("checkbox").uncheck();
  await page.waitForSelector("li:has-text('off for you')");
  await check(page, "my tools");
  assert.deepEqual((await api("GET", `/mcp-gateway/me/tools?profile=${profile.slug}`)).disabled, [], "nobody else's choice");
  await to(page, `#/mcp/${profile._id}?tab=tools`);
  await press("Switch off");
  await page.waitForSelector("button:has-text('Switch on')");
  assert.equal((await api("GET", `/mcp-gateway/profiles/${profile._id}/tools`))[0].enabled, false);
  await check(page, "tools of a profile");
  const caller = await api("POST", "/api-keys", { name: "Caller" });
  await page.getByRole("tab", { name: "Preview" }).click();
  await page.getByLabel("Caller", { exact: true }).selectOption("key");
  await page.getByLabel("Id of the caller").fill(caller._id);
  await press("Show what they see");
  await page.waitForSelector("text=0 tools");
  await page.getByRole("tab", { name: "Tools", exact: true }).click();
  await press("Switch on");
  await page.waitForSelector("button:has-text('Switch off')");
  await page.getByRole("tab", { name: "Preview" }).click();
  await page.getByLabel("Caller", { exact: true }).selectOption("key");
  await page.getByLabel("Id of the caller").fill(caller._id);
  await press("Show what they see");
  await page.waitForSelector("[role=tabpanel] li:has-text('look')");
  await check(page, "what a caller sees");

  await api("POST", "/skills/scaffold", { name: "review", description: "Reviews what was written" });
  await to(page, "#/skills");
  await check(page, "skills");
  await page.getByRole("link", { name: "review" }).click();
  await page.getByText("Reviews what was written").first().waitFor();
  await page.getByText("SKILL.md").waitFor();
  await check(page, "a skill");
  const [file] = await Promise.all([page.waitForEvent("download"), press("Download")]);
  assert.equal(file.suggestedFilename(), "review.zip");
  await to(page, "#/skills");
  await page.locator("input[type=file]").setInputFiles({ name: "review.zip", mimeType: "application/zip", buffer: await readFile(await file.path()) });
  await until("it is there twice", async () => (await api("GET", "/skills")).items.filter((it) => it.name === "review").length === 2);

  await to(page, "#/webhooks");
  await press("Rotate default secret");
  await press("Yes");
  assert.match(await page.locator(".secret code").textContent(), /^whsec_/);
  await check(page, "a default secret");
});

await step("a recording is read as text with its times", async () => {
  const samples = Buffer.alloc(2 * 16_000);
  for (let i = 0; i < 16_000; i++) samples.writeInt16LE(Math.round(9000 * Math.sin(i / 5)), 2 * i);
  const header = Buffer.alloc(44);
  header.write("RIFF", 0), header.writeUInt32LE(36 + samples.length, 4), header.write("WAVEfmt ", 8), header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20), header.writeUInt16LE(1, 22), header.writeUInt32LE(16_000, 24), header.writeUInt32LE(32_000, 28);
  header.writeUInt16LE(2, 32), header.writeUInt16LE(16, 34), header.write("data", 36), header.writeUInt32LE(samples.length, 40);
  await to(page, "#/speech");
  await page.locator("input[type=file]").setInputFiles({ name: "hello.wav", mimeType: "audio/wav", buffer: Buffer.concat([header, samples]) });
  await page.waitForSelector("section[aria-label=Transcript]:has-text('demo transcript of')");
  // The demo engine knows no times.
  await page.route("**/v1/speech-to-text/timed", (route) => route.fulfill({ json: { text: "One. Two.", audioUrl: `${url}/f/x/y`, segments: [{ startMs: 0, endMs: 1500, text: "One." }, { startMs: 61_500, endMs: 62_000, text: "Two." }] } }));
  await page.getByLabel("Id of a transcript").fill("timed");
  await press("Open");
  await page.waitForSelector("section[aria-label=Transcript] .entries li:has-text('1:01 – 1:02')");
  await check(page, "a transcript");
  await picture(page, "speech");
});

await step("what an end user may connect is shown for the tenant", async () => {
  const config = { tenantIntegrationsConfig: { enabled: true, apps: [{ app: "slack" }] }, tenantMcpConfig: { enabled: true } };
  await api("POST", "/assistants", { name: "Desk", identifier: "desk", ...config });
  await api("POST", "/tenants", { tenantId: "umbrella" });
  await to(page, "#/tenants/umbrella?tab=accounts");
  await page.getByLabel("Assistant", { exact: true }).fill("default");
  await press("Show accounts");
  await page.waitForSelector("text=offers its users no apps");
  await page.getByLabel("Assistant", { exact: true }).fill("desk");
  await press("Show accounts");
  await page.waitForSelector("ul[aria-label=Apps] li:has-text('Slack')");
  await press("Connect");
  await page.waitForSelector("ul[aria-label=Apps] article");
  await page.getByLabel("Address of an MCP server").fill("http://127.0.0.1:9/mcp");
  await press("Add MCP server");
  await page.waitForSelector(".failure");
  await check(page, "accounts of a tenant");
  await picture(page, "accounts");
});

await step("the keyboard reaches everything", async () => {
  await to(page, "#/home");
  await page.locator("h1").click();
  await page.keyboard.press("/");
  await page.waitForSelector("dialog input:focus");
  await page.keyboard.type("Helper");
  await page.waitForSelector("[role=option]:has-text('Helper')");
  await check(page, "palette");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('Helper')");
  await page.locator("[role=tab][aria-selected=true]").focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector("[role=tab][aria-selected=true]:has-text('Chats')");
});

await step("who logs out is out, and a key opens what takes a full one", async () => {
  await to(page, "#/users");
  assert.match(await page.locator("main").textContent(), /full API key/);
  assert.equal(await page.getByRole("link", { name: "Users" }).count(), 0, "it is not offered");
  await press("Log out");
  await page.waitForSelector("text=With an API key");
  await page.reload();
  await page.waitForSelector("text=With an API key");
  await check(page, "log in");
  await page.fill("#key", "ak-of-nobody");
  await page.click("text=Use this key");
  assert.match(await page.locator(".failure").textContent(), /request \S/, "what went wrong can be looked up");
  await withKey(page);
  assert.equal(await page.getByRole("link", { name: "Users" }).count(), 1);
  await to(page, "#/oauth-clients");
  await press("New client");
  await field("Name").fill("Portal");
  await field("Redirect uris").fill("https://portal.example/back");
  await field("Confidential").selectOption("true");
  await press("Make client");
  await page.waitForSelector(".secret code");
  await check(page, "a secret of a client");
  await page.keyboard.press("Escape");
});

await step("a quota is a bar that says when it begins anew", async () => {
  await to(page, "#/tiers");
  await press("New tier");
  await field("Tier ID").fill("pro");
  await field("Name").fill("Pro");
  await field("Rules").fill('[{"scope": "tenant", "metric": "tokens", "windowUnit": "month", "windowEvery": 1, "limit": 100}]');
  await field("Is default").selectOption("true");
  await press("Make tier");
  await page.waitForSelector(".tr:has-text('Pro')");
  await api("POST", "/assistants/helper/messages", { message: "/usage {\"inputTokens\": 80, \"outputTokens\": 5}\nHello", tenantId: "acme", skipSummarization: true });
  await to(page, "#/tenants/acme");
  await page.waitForSelector(".quota.near");
  const bar = page.getByRole("progressbar");
  assert.ok(Number(await bar.getAttribute("aria-valuenow")) >= 80);
  assert.match(await page.locator(".quotas").textContent(), /resets (in \d|tomorrow)/);
  await check(page, "quotas");
  await picture(page, "quotas");
  await press("Replace own limits");
  await field("Rules").fill('[{"scope": "tenant", "metric": "cost", "windowUnit": "day", "windowEvery": 1, "limit": 5}]');
  await page.locator("dialog").getByRole("button", { name: "Replace own limits" }).click();
  await page.getByRole("tab", { name: "Own limits" }).click();
  await page.waitForSelector(".tr:has-text('cost')");
  await check(page, "own limits");
  await api("PUT", "/tenant-admin/acme/usage-limits", { rules: [] });
  // An end user has quotas of their own, and is given more there.
  await api("PUT", "/tenant-admin/tiers/pro", { name: "Pro", isDefault: true, rules: [{ scope: "subtenant", metric: "tokens", windowUnit: "day", windowEvery: 1, limit: 1000 }] });
  await api("POST", "/assistants/helper/messages", { message: "/usage {\"inputTokens\": 300, \"outputTokens\": 200}\nHello", tenantId: "acme", subtenantId: "ann", skipSummarization: true });
  await to(page, "#/tiers");
  await to(page, "#/tenants/acme");
  await page.getByLabel("Whose quotas").selectOption("ann");
  await page.waitForSelector(".quotas:has-text('tokens a day')");
  assert.equal(await page.getByRole("progressbar").getAttribute("aria-valuenow"), "50");
  await page.getByRole("tab", { name: "Users" }).click();
  await page.locator("[role=tabpanel]").getByRole("button", { name: "Reset usage" }).click();
  await press("Yes");
  await page.locator("[role=tabpanel]").getByRole("button", { name: "Audit" }).click();
  await page.waitForSelector("dialog:has-text('cleared')");
  await page.keyboard.press("Escape");
  await page.getByRole("tab", { name: "Quotas" }).click();
  await page.waitForSelector(".quota[aria-valuenow='0']");
  await check(page, "quotas of an end user");
});

await step("figures and curves of Home are those of the API", async () => {
  // Another tab, which knows of no figures yet.
  const home = await open();
  await withKey(home);
  await home.waitForSelector("figure");
  const tile = async (title) => Number((await home.locator(`.tile:has-text('${title}') .value`).textContent()).replace(/\D/g, ""));
  const midnight = new Date().setHours(0, 0, 0, 0);
  const { total } = await api("POST", "/assistants/chats?limit=1", { createdAfter: midnight });
  assert.ok(total > 5);
  assert.equal(await tile("chats today"), total);
  const threads = async (state) => (await api("GET", `/agents/threads?limit=1&startDate=${midnight}${state}`)).total;
  assert.equal(await tile("threads failed today"), await threads("&state=failed"));
  // The table beside a curve begins with today.
  const figure = home.locator("figure").filter({ hasText: "Chats and threads" });
  const runs = Number((await figure.locator("tbody tr").first().locator("td").last().textContent()).replace(/\D/g, ""));
  const least = total + (await threads(""));
  assert.ok(runs >= least, `${runs} of ${least} runs`);
});

await step("a list of a million chats is scrolled to its end", async () => {
  const total = 1_000_000;
  await page.route("**/v1/assistants/chats*", (route) => {
    const asked = new URL(route.request().url()).searchParams;
    const offset = Number(asked.get("offset"));
    const histories = Array.from({ length: Math.min(100, total - offset) }, (_, i) => ({ chatUID: `c${offset + i}`, name: `Chat ${offset + i}`, assistantSpecializationIdentifier: "helper", status: "completed", creationTimestampMs: 2 * (total - offset - i), lastEditTimestampMs: offset + i }));
    return route.fulfill({ status: 201, json: { histories, total, offset, limit: 100 } });
  });
  await to(page, "#/runs?kind=chats");
  const rows = page.locator(".rows");
  await rows.evaluate((rows) => (rows.scrollTop = rows.scrollHeight));
  await page.waitForSelector("text=Chat 999999");
  assert.ok((await page.locator(".rows .tr").count()) < 100, "only rows in sight exist");
  // Whoever goes on from there page by page, or with the wheel, misses no row.
  const inSight = () => rows.evaluate((rows) => {
    const { top, bottom } = rows.getBoundingClientRect();
    const of = (row) => row.getBoundingClientRect();
    return [...rows.querySelectorAll(".tr")].filter((row) => of(row).top >= top - 1 && of(row).bottom <= bottom + 1).map((row) => Number(row.getAttribute("aria-rowindex")) - 2).sort((a, b) => a - b);
  });
  await rows.evaluate((rows) => (rows.scrollTop = rows.scrollHeight / 2));
  await until("the middle is in sight", async () => (await inSight())[0] < 600_000);
  // Until then short steps belong to the jump.
  await page.waitForTimeout(200);
  for (const by of [1, 0.9, -1]) {
    const before = await inSight();
    await rows.evaluate((rows, by) => rows.scrollBy({ top: by * (rows.clientHeight - 41), behavior: "instant" }), by);
    await until("it was scrolled", async () => (await inSight())[0] !== before[0]);
    const after = await inSight();
    const [first, second] = by > 0 ? [before, after] : [after, before];
    assert.ok(second[0] <= first.at(-1) + 1 && second[0] > first[0], `${first} then ${second}`);
  }
  await rows.evaluate((rows) => (rows.scrollTop = rows.scrollHeight));
  await page.waitForSelector("text=Chat 999999");
  const gaps = await rows.evaluate(async (rows) => {
    const gaps = [];
    let last = performance.now();
    for (let i = 0; i < 60; i++) {
      rows.scrollTop -= 400;
      await new Promise(requestAnimationFrame);
      gaps.push(performance.now() - last);
      last = performance.now();
    }
    return gaps.sort((a, b) => a - b);
  });
  console.log(`  half of the frames within ${Math.round(gaps[30])} ms, the slowest ${Math.round(gaps[59])} ms`);
  // Beside whatever else the machine does.
  assert.ok(gaps[30] < 200, `half of the frames come late: ${gaps[30]} ms`);

  // With as many threads, each newer than its chat, both are one list by time.
  await page.route("**/v1/agents/threads?*", (route) => {
    const offset = Number(new URL(route.request().url()).searchParams.get("offset"));
    const threads = Array.from({ length: 100 }, (_, i) => ({ _id: `t${offset + i}`, name: `Thread ${offset + i}`, state: "completed", creationTimestampMs: 2 * (total - offset - i) + 1 }));
    return route.fulfill({ json: { threads, total, offset, limit: 100 } });
  });
  const names = () => rows.locator("[role=row] a").allTextContents();
  await to(page, "#/runs?state=completed");
  await page.waitForSelector("text=Thread 0");
  assert.deepEqual((await names()).slice(0, 2), ["Thread 0", "Thread 1"], "only threads have this state");
  await page.getByLabel("Title").fill("x");
  await page.getByLabel("Title").press("Enter");
  await page.getByText("No run has all of these").waitFor();
  await page.getByLabel("State").selectOption("");
  await page.waitForSelector("text=Chat 0");
  assert.deepEqual((await names()).slice(0, 2), ["Chat 0", "Chat 1"], "only chats are found by their title");
  await to(page, "#/runs");
  await page.waitForSelector("text=Thread 0");
  assert.deepEqual((await names()).slice(0, 4), ["Thread 0", "Chat 0", "Thread 1", "Chat 1"]);
  await rows.evaluate((rows) => (rows.scrollTop = rows.scrollHeight));
  await page.waitForSelector("text=Chat 999");
  assert.deepEqual((await names()).slice(-2), ["Thread 999", "Chat 999"]);
  await page.unroute("**/v1/agents/threads?*");
  await page.unroute("**/v1/assistants/chats*");
});

await step("no page keeps anybody out, light, dark and narrow", async () => {
  await api("POST", "/documents", { name: "Handbook", markdownContent: "# Refunds\n\nWithin 30 days." });
  await api("POST", "/tool-servers", { name: "Orders", url: "https://shop.example", toolDefinitions: [{ function: { name: "get_order" }, endpoint: "/orders" }] });
  await api("POST", "/environments", { name: "Box" });
  await api("POST", "/projects", { name: "Alpha", identifier: "alpha" });
  await api("POST", "/webhooks", { url: "https://hooks.example/x", events: ["thread.finished"] });
  const pages = await page.locator("nav a[href^='#/']").evaluateAll((links) => links.map((link) => link.getAttribute("href")));
  assert.ok(pages.length > 20);
  for (const theme of ["light", "dark"]) {
    await page.getByLabel("Theme").selectOption(theme);
    for (const hash of pages) {
      await to(page, hash);
      await check(page, `${hash}, ${theme}`);
      const name = hash.slice(2);
      if (["home", "runs", "assistants", "agents", "documents", "keys", "integrations", "mcp"].includes(name)) await picture(page, `${name}-${theme}`);
      const first = page.locator(".rows .tr a").first();
      if (theme === "light" && (await first.count())) {
        await first.click();
        await page.waitForSelector("[role=tab]");
        for (const tab of await page.getByRole("tab").all()) {
          await tab.click();
          await settled(page);
          assert.deepEqual(await page.locator(".failure").allTextContents(), [], `${hash} ${await tab.textContent()}`);
          await check(page, `${hash} ${await tab.textContent()}`);
        }
      }
    }
  }
  await page.setViewportSize({ width: 390, height: 800 });
  for (const hash of [...pages, "#/tenants/acme", "#/assistants/helper"]) {
    await to(page, hash);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(over <= 0, `${hash} is ${over} px too wide`);
    await check(page, `${hash}, narrow`);
    if (["#/home", "#/assistants", "#/runs", "#/tenants/acme", "#/assistants/helper"].includes(hash)) await picture(page, `${hash.slice(2).replace("/", "-")}-narrow`);
  }
});

await step("a key that is bound sees only what it may", async () => {
  const bound = await api("POST", "/api-keys", { name: "Reads chats", allowedEndpoints: [{ method: "GET", path: "/assistants/**" }, { method: "GET", path: "/assistants" }, { method: "POST", path: "/assistants/chats" }] });
  const other = await open();
  await withKey(other, bound.key);
  await other.waitForSelector("nav a:has-text('Assistants')");
  assert.deepEqual(await other.locator("nav a[href^='#/']").allTextContents(), ["Home", "Runs", "Assistants"]);
  for (const hash of ["#/home", "#/runs"]) {
    await to(other, hash);
    assert.deepEqual(await other.locator(".failure").allTextContents(), [], hash);
  }
  assert.deepEqual(await other.getByRole("tab").allTextContents(), ["Chats"]);
});

await step("a key that reads is offered nothing that writes, and one that also sends messages nothing else", async () => {
  const reads = { method: "GET", path: "/**" };
  const lists = { method: "POST", path: "/assistants/chats" };
  const { histories } = await api("POST", "/assistants/chats", { assistantSpecializationIdentifier: "helper" });
  const { threads } = await api("GET", "/agents/threads");
  const records = ["#/assistants/helper", `#/chats/helper/${histories[0].chatUID}`, `#/threads/${threads[0]._id}`];
  const other = await open();
  await withKey(other, (await api("POST", "/api-keys", { name: "Reads", allowedEndpoints: [reads, lists] })).key);
  const pages = await other.locator("nav a[href^='#/']").evaluateAll((links) => links.map((link) => link.getAttribute("href")));
  assert.ok(pages.length > 12, pages.join());
  const offered = (page) => page.locator("main button:is(.main, .danger), main .button, main form.form, main textarea").allTextContents();
  const tabs = (page) => page.getByRole("tab").allTextContents();
  for (const hash of [...pages, ...records]) {
    await to(other, hash);
    await other.waitForSelector("main h1");
    assert.deepEqual([await offered(other), await other.locator(".failure").allTextContents()], [[], []], hash);
  }
  await to(other, "#/assistants/helper");
  await other.waitForSelector("[role=tab]");
  assert.deepEqual(await tabs(other), ["Chats", "Memory", "JSON"]);
  await other.keyboard.press("/");
  await other.waitForSelector("dialog [role=option]");
  assert.ok(!(await other.locator("dialog [role=option]").allTextContents()).some((title) => title.startsWith("New ")));

  const talks = { method: "POST", path: "/assistants/*/messages" };
  await withKey(other, (await api("POST", "/api-keys", { name: "Talks", allowedEndpoints: [reads, lists, talks] })).key);
  await to(other, "#/assistants/helper");
  await other.waitForSelector("[role=tab]");
  assert.deepEqual(await tabs(other), ["Playground", "Chats", "Memory", "JSON"]);
  await other.getByLabel("Message").fill("Hello");
  await other.getByLabel("Message").press("Enter");
  await other.waitForSelector(".message.assistant .about");
  assert.deepEqual(await offered(other), ["", "Send"]);
});

await step("a link that is pasted over an open page logs in, too", async () => {
  const other = await open();
  await other.goto(url);
  await other.getByRole("heading", { name: "With an API key" }).waitFor();
  await other.evaluate((link) => void (location.href = link), link);
  await other.getByRole("button", { name: "Log in with this link" }).waitFor();
  assert.ok(!other.url().includes("link="));
});

await step("a record that a tab has changed is changed further", async () => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await to(page, "#/assistants/helper?tab=compare");
  await page.getByLabel("Other prompt").fill("You help at once.");
  await press("Store the other prompt");
  await page.waitForSelector(".prompt .gone, .prompt:has-text('You help at once.')");
  await page.getByRole("tab", { name: "Settings" }).click();
  await field("Description").fill("Of the counter");
  await press("Save");
  await until("it is stored", async () => (await api("GET", "/assistants/helper")).description === "Of the counter");
  assert.equal((await api("GET", "/assistants/helper?includePresets=true")).presets, "You help at once.");
});

assert.deepEqual(complaints, []);
await browser.close();
