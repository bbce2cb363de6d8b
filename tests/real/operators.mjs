// The operators' screens in a real browser, as an operator uses them at night.
//
//     node operators.mjs gateway|dispatcher STAGE
//
// STAGE is JSON: `url` (of the admin listener), `token` (or null where none is needed), `script`
// (whether the browser runs it), `host` (of the paused webhook), `looks` (whether every page is looked at in every look),
// `chromium`, `pictures` (a folder, or null).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [program, text] = process.argv.slice(2);
const stage = JSON.parse(text);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 40_000;
const HOSTILE = "\"'></code></script><img data-hacked src=x onerror=\"globalThis.hacked=1\">";
const LOOKS = {
  light: { colorScheme: "light", viewport: { width: 1200, height: 800 } },
  dark: { colorScheme: "dark", viewport: { width: 1200, height: 800 } },
  phone: { colorScheme: "light", viewport: { width: 360, height: 844 } },
};

const browser = await chromium.launch({
  executablePath: stage.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});

function fail(why) {
  console.error(why);
  process.exit(1);
}

async function visitor() {
  const context = await browser.newContext({ ...LOOKS.light, javaScriptEnabled: stage.script });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (error) => fail(`an error of the script: ${error}`));
  page.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) fail(message.text());
  });
  page.on("dialog", (dialog) => fail(`a dialog: ${dialog.message()}`));
  return page;
}

/** Loads the page again until it shows this; with the script it would by itself, but later. */
async function until(page, locate) {
  const end = Date.now() + PATIENCE;
  while (!(await locate().first().isVisible())) {
    assert.ok(Date.now() < end, `not seen in time on ${page.url()}:\n${await page.innerText("main")}`);
    await page.waitForTimeout(200);
    await page.reload();
  }
}

async function signIn(page) {
  await page.goto(`${stage.url}/`);
  assert.ok(page.url().endsWith("/dashboard"), page.url());
  if (!stage.token) return;
  await look(page, "sign-in");
  await page.getByLabel("Token of the admin listener").fill("a guess that is wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("This is not the token").waitFor();
  await page.getByLabel("Token of the admin listener").fill(stage.token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const cookies = await page.context().cookies();
  assert.equal(cookies.length, 1);
  assert.deepEqual(
    [cookies[0].httpOnly, cookies[0].sameSite, cookies[0].value.includes(stage.token)],
    [true, "Strict", false],
  );
}

async function signOut(page) {
  if (!stage.token) return;
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await page.goto(`${stage.url}/dashboard`);
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
}

/** Six charts of one hour, each with its numbers; eight numbers above them. */
async function overview(page, chart) {
  await until(page, () => page.locator(`svg[aria-label="${chart}"] path:not(.grid)`));
  assert.equal(await page.locator(".numbers > div").count(), 8);
  assert.equal(await page.locator(".plots svg.plot").count(), 6);
  assert.equal(await page.locator(".plots details").count(), 6);
  const shown = page.locator(".plots section", { hasText: chart });
  await shown.locator("summary").click();
  await page.locator("details[open] tbody tr").first().waitFor();
  const axes = await page.locator(".plots svg.plot").evaluateAll((plots) =>
    plots.map((plot) => [...plot.querySelectorAll("text:not([text-anchor])")].map((text) => text.textContent).join(" ")),
  );
  assert.ok(axes.every((axis) => axis === axes[0]), axes.join("\n"));
  if (stage.script) {
    // What is open stays open while the page shows news.
    // A page with a selection stays as it is, and a click during a refresh may select text.
    await page.evaluate(() => document.getSelection().removeAllRanges());
    // A minute without requests changes no chart, so the old nodes are marked instead.
    await page.locator(".plots").evaluate((plots) => plots.setAttribute("data-before", ""));
    await page.locator(".plots:not([data-before])").waitFor();
    await page.locator("details[open] tbody tr").first().waitFor();
  }
  await look(page, "overview");
}

async function gateway(page) {
  await signIn(page);
  await overview(page, "Requests per second, by response");
  const refused = page.locator("section", { hasText: "Most refused keys" });
  await refused.getByRole("link", { name: "ws_acme" }).first().click();
  await page.getByRole("heading", { name: "ws_acme", level: 1 }).waitFor();
  await page.getByText("plan free").first().waitFor();

  // More than the plan gives, for a while.
  await page.getByLabel("Requests", { exact: true }).fill("1");
  await page.getByRole("button", { name: "Boost" }).click();
  await page.getByRole("heading", { name: "Not a boost" }).waitFor();
  await page.goBack();
  await page.getByLabel("Requests", { exact: true }).fill("500");
  await page.getByRole("button", { name: "Boost", exact: true }).click();
  await page.locator("dt:text-is('From') + dd:text-is('boost')").waitFor();
  await look(page, "key");
  await page.getByRole("link", { name: "Overview" }).click();
  const values = page.locator("section", { hasText: "Values of limits" });
  for (const origin of ["file", "plan free", "override of workspace ws_special", /^boost of ws_acme until/]) {
    const name = origin instanceof RegExp ? origin : new RegExp(`^${origin}$`);
    await values.getByRole("cell", { name }).first().waitFor();
  }
  await page.goBack();
  await page.getByRole("button", { name: "End the boost" }).click();
  await page.locator("dt:text-is('From') + dd:text-is('plan free')").waitFor();
  await page.getByRole("button", { name: "Forget what it has used" }).click();
  await page.getByRole("heading", { name: "Forget what ws_acme has used?" }).waitFor();
  await look(page, "question");
  await page.getByRole("button", { name: "Forget it" }).click();
  await page.locator("dt:text-is('Used') + dd:text-is('0')").waitFor();

  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByLabel("URL, as a client calls it").fill("http://api.localhost/v1/workspaces/ws_acme/users");
  await page.getByRole("button", { name: "Explain" }).click();
  await page.getByRole("heading", { name: "Limits that it meets" }).waitFor();
  await page.getByText("its plan's, free").first().waitFor();
  await look(page, "explained");

  await hostile(page, [`key?limit=workspace&key=${encodeURIComponent(HOSTILE)}`, `key?limit=${encodeURIComponent(HOSTILE)}&key=a`]);
  for (const fields of [{ "URL, as a client calls it": HOSTILE }, { "Address of the client": HOSTILE }, { "Headers, one a line": HOSTILE }]) {
    await page.goto(`${stage.url}/dashboard`);
    await page.getByLabel("URL, as a client calls it").fill("http://api.localhost/v1/x");
    for (const [label, value] of Object.entries(fields)) await page.getByLabel(label).fill(value);
    await page.getByRole("button", { name: "Explain" }).click();
    await page.getByRole("heading", { name: "What would this request meet?" }).first().waitFor();
    await unhurt(page, JSON.stringify(fields));
  }
  await page.goto(`${stage.url}/dashboard`);
  await signOut(page);
}

async function dispatcher(page) {
  await signIn(page);
  await overview(page, "Attempts per second");
  const failing = page.locator("section", { hasText: "Endpoints that fail most" });
  await until(page, () => failing.getByRole("cell", { name: "ws_acme" }));
  const stopped = page.locator("section", { hasText: "Webhooks that do not deliver" });
  await until(page, () => stopped.getByText("■ Paused"));
  await look(page, "troubled");

  await page.getByLabel("Host; empty for all").fill(HOSTILE);
  await page.getByRole("button", { name: "Reactivate those that match" }).click();
  await page.getByText("Not done").waitFor();
  await unhurt(page, "a host");
  await page.goto(`${stage.url}/dashboard`);
  await page.getByLabel("Host; empty for all").fill(stage.host);
  await page.getByRole("button", { name: "Reactivate those that match" }).click();
  await page.getByRole("heading", { name: /^Reactivate \d+\?$/ }).waitFor();
  await look(page, "question");
  await page.getByRole("button", { name: "Reactivate", exact: true }).click();
  await page.getByText(/Webhooks reactivated: \d+\./).waitFor();

  await hostile(page, [`${encodeURIComponent(HOSTILE)}`, `?done=${encodeURIComponent(HOSTILE)}`]);
  await page.goto(`${stage.url}/dashboard`);
  await signOut(page);
}

/** What an address has in it is shown as text, or not at all. */
async function hostile(page, paths) {
  for (const path of paths) {
    await page.goto(`${stage.url}/dashboard${path.startsWith("?") ? "" : "/"}${path}`);
    await unhurt(page, path);
  }
}

async function unhurt(page, what) {
  if (!stage.script) return;
  const hacked = await page.evaluate(() => [
    globalThis.hacked,
    document.querySelectorAll("[data-hacked], iframe, object, script:not([src]), style, [style], [onerror], [onload]").length,
  ]);
  assert.deepEqual(hacked, [undefined, 0], what);
}

async function look(page, label) {
  if (!stage.looks) return;
  for (const [name, options] of Object.entries(LOOKS)) {
    await page.emulateMedia({ colorScheme: options.colorScheme });
    await page.setViewportSize(options.viewport);
    const width = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (stage.pictures) {
      await page.screenshot({ path: `${stage.pictures}/${program}-${label}-${name}.png`, fullPage: true });
      await page.screenshot({ path: `${stage.pictures}/${program}-${label}-${name}-top.png` });
    }
    assert.ok(width <= 0, `${label}, ${name}: ${width} px too wide`);
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() =>
      axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }),
    );
    const lines = violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html}\n  ${node.failureSummary}`));
    assert.equal(lines.join("\n"), "", `${label}, ${name}`);
  }
  await page.emulateMedia(LOOKS.light);
  await page.setViewportSize(LOOKS.light.viewport);
}

const page = await visitor();
if (program === "gateway") await gateway(page);
if (program === "dispatcher") await dispatcher(page);
await browser.close();
console.log("done");
