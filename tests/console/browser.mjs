// A browser at the console: its pages, what axe says of them, and pictures.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { chromium } from "playwright-core";

export const { CONSOLE_URL: url, CONSOLE_LINK: link, CONSOLE_KEY: key, CONSOLE_BROWSER: executablePath } = process.env;
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const screenshots = new URL("screenshots/", import.meta.url);
mkdirSync(screenshots, { recursive: true });

const quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
export const browser = await chromium.launch({ executablePath, args: quiet });

/// What the page complained of, or asked of another host; a test that ends with any has failed.
export const complaints = [];

export async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  watch(page);
  page.on("console", (message) => message.type() === "error" && !/status of 4\d\d/.test(message.text()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => (complaints.push(`A dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("request", (request) => new URL(request.url()).protocol.startsWith("http") && !request.url().startsWith(url) && complaints.push(`A request to ${request.url()}`));
  page.on("response", (answer) => answer.status() >= 500 && complaints.push(`${answer.status()} of ${answer.url()}`));
  page.setDefaultTimeout(30_000);
  return page;
}

/// Requests of a page that are under way; streams last as long as what they show.
const underWay = new WeakMap();

function watch(page) {
  const open = new Set();
  underWay.set(page, open);
  page.on("request", (request) => request.url().includes("/stream") || open.add(request));
  for (const end of ["requestfinished", "requestfailed"]) page.on(end, (request) => open.delete(request));
}

/// Where the page is, once what it loads is there.
export async function to(page, hash) {
  await page.goto(`${url}/${hash}`);
  await settled(page);
}

export async function settled(page) {
  const began = Date.now();
  for (let still = 0; still < 4; still = underWay.get(page).size ? 0 : still + 1) {
    assert.ok(Date.now() - began < 30_000, `never answered: ${[...underWay.get(page)].map((request) => request.url())}`);
    await new Promise((done) => setTimeout(done, 40));
  }
  await page.waitForFunction(() => !document.querySelector(".table[aria-busy=true]"));
}

/// What axe finds on the page, by the rules of WCAG 2.2 AA and good practice.
export async function check(page, name) {
  const { violations } = await page.evaluate(`${axe}; axe.run(document, { rules: { "target-size": { enabled: true } } })`);
  const said = violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)} (${nodes[0].failureSummary})`);
  assert.deepEqual(said, [], `${name} keeps people out`);
}

export const picture = (page, name) => page.screenshot({ path: new URL(`${name}.png`, screenshots).pathname });

/// Waits for what no event tells of; not for ever.
export async function until(what, holds) {
  const began = Date.now();
  while (!(await holds())) {
    assert.ok(Date.now() - began < 30_000, `never: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

export async function step(name, run) {
  const began = Date.now();
  await run().catch(async (error) => {
    for (const [i, page] of browser.contexts().flatMap((context) => context.pages()).entries()) await picture(page, `failed-${i}`);
    throw error;
  });
  assert.deepEqual(complaints, [], name);
  console.log(`${name} (${Date.now() - began} ms)`);
}

export async function withKey(page, value = key) {
  await page.goto(url);
  await page.fill("#key", value);
  await page.click("text=Use this key");
  await page.waitForSelector("nav");
}
