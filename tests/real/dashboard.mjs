// The dashboard in a real browser, through the gateway, as a customer uses it.
//
//     node dashboard.mjs journey|plain|pages|hostile STAGE
//
// STAGE is JSON: `links` (each opens once), `receiver` (its URL; /become/STATUS sets what it
// answers), `events` (where backends post them), `backend` (their token), `settings` (texts of the
// dispatcher's configuration, its file, and where it is reloaded), `chromium`, `pictures` (a
// folder, or null); for `hostile` also `webhook` and `hostile`, the text that it has everywhere.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [what, text] = process.argv.slice(2);
const stage = JSON.parse(text);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 30_000;
const PAGE_BYTES_MAX = 60 * 1024;

const browser = await chromium.launch({
  executablePath: stage.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});

/** A visitor who has a cookie jar of their own. */
async function visitor(options = {}) {
  const context = await browser.newContext({ timezoneId: "Europe/Berlin", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (error) => fail(`an error of the script: ${error}`));
  page.on("console", (message) => {
    // What the policy of the page blocks is logged there.
    if (/Content Security Policy/.test(message.text())) fail(message.text());
  });
  page.on("dialog", (dialog) => fail(`a dialog: ${dialog.message()}`));
  return page;
}

function fail(why) {
  console.error(why);
  process.exit(1);
}

async function enter(page, link) {
  await page.goto(link);
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByRole("heading", { name: "Webhooks", exact: true }).waitFor();
}

async function become(status) {
  assert.equal((await fetch(`${stage.receiver}/become/${status}`)).status, 200);
}

/** Gives the dispatcher one of its prepared settings. */
async function set(name) {
  writeFileSync(stage.settings.file, stage.settings[name]);
  const answer = await fetch(stage.settings.reload, { method: "POST" });
  assert.equal(answer.status, 200, await answer.text());
}

async function post(count, data = {}) {
  for (let nth = 0; nth < count; nth++) {
    const answer = await fetch(stage.events, {
      method: "POST",
      headers: { authorization: `Bearer ${stage.backend}`, "content-type": "application/json" },
      body: JSON.stringify({
        type: "user.created",
        workspace_id: "ws_acme",
        tenant_id: "tn_1",
        data: { user_id: "u_1", email: "ada@acme.example", name: "Ada", via_idp: "github", ...data },
      }),
    });
    assert.equal(answer.status, 202, await answer.text());
  }
}

/** Loads the page again until it has this text; without the script, nothing else shows news. */
async function until(page, locate) {
  const end = Date.now() + PATIENCE;
  while (!(await locate().first().isVisible())) {
    assert.ok(Date.now() < end, `not seen in time on ${page.url()}:\n${await page.innerText("main")}`);
    await page.waitForTimeout(100);
    await page.reload();
  }
}

async function add(page, path) {
  await page.getByRole("link", { name: "Add a webhook" }).click();
  await page.getByLabel("Address").fill(`${stage.receiver}${path}`);
  await page.getByLabel("user.created", { exact: true }).check();
  // No page is wider than its window for it.
  await page.getByLabel("Description").fill("d".repeat(200));
  await page.getByRole("button", { name: "Check the address" }).click();
  await page.getByRole("status").waitFor();
  // What was typed is still there.
  assert.ok(await page.getByLabel("user.created", { exact: true }).isChecked());
  await page.getByRole("button", { name: "Add the webhook" }).click();
  await page.getByRole("heading", { name: "Keep the secret" }).waitFor();
  const secret = await page.locator("#secret").textContent();
  assert.match(secret, /^whsec_[A-Za-z0-9+/]+=*$/);
  await page.getByRole("link", { name: "I have kept it" }).click();
  await page.getByRole("heading", { name: `${stage.receiver}${path}` }).waitFor();
  assert.ok(!(await page.content()).includes(secret), "the secret is shown once");
}

/** Create, see it fail, pause, reactivate, redeliver some and all, watch the progress. */
async function journey(page, runsScript) {
  await enter(page, stage.links[0]);
  await page.getByRole("heading", { name: "No webhook yet" }).waitFor();
  await add(page, "/hook");
  await become(500);
  await page.getByLabel("Type of the test").selectOption("plan.changed");
  await page.getByRole("button", { name: "Send a test" }).click();
  await until(page, () => page.getByText("attempt 1 ·"));
  await until(page, () => page.getByText("The test failed: its one attempt was not answered"));
  await page.getByRole("link", { name: `${stage.receiver}/hook` }).click();
  await post(5);
  await until(page, () => page.getByText("Deliveries are paused"));
  await become(200);
  await page.getByRole("button", { name: "Reactivate" }).click();
  await until(page, () => page.getByText("● Delivered"));
  await page.getByText("● Delivering").waitFor();
  const axis = page.locator("text[data-time]").first();
  const at = new Date(await axis.getAttribute("data-time"));
  const timeZone = runsScript ? "Europe/Berlin" : "UTC";
  const shown = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone });
  assert.equal(await axis.textContent(), shown);
  // The first event was tried before the pause, which is on its time line.
  await page.locator("tbody tr", { hasText: "user.created" }).last().locator("a").first().click();
  await page.getByText("Sent nothing once: paused or disabled").waitFor();
  assert.equal(await page.locator("svg.axis path.paused").count(), 1);

  // Now deliveries are given up soon.
  await set("giving_up");
  await become(410);
  await post(12);
  await page.getByRole("navigation").getByRole("link", { name: "Failed" }).click();
  await until(page, () => page.getByRole("button", { name: "Redeliver all 12 that match" }));
  await page.getByRole("checkbox").nth(0).check();
  await page.getByRole("checkbox").nth(1).check();
  if (runsScript) await page.getByRole("button", { name: "Redeliver selected (2)" }).waitFor();
  await become(200);
  await page.getByRole("button", { name: /Redeliver selected/ }).click();
  await page.getByRole("heading", { name: "Redeliver 2?" }).waitFor();
  await page.getByRole("button", { name: "Redeliver", exact: true }).click();
  await page.getByRole("heading", { name: "Redelivery" }).waitFor();
  const delivered = (count) => page.locator("dt:text-is('Delivered') + dd", { hasText: count });
  await until(page, () => delivered("2"));
  await page.getByRole("navigation").getByRole("link", { name: "Failed" }).click();
  await page.getByRole("button", { name: "Redeliver all 10 that match" }).click();
  await page.getByRole("heading", { name: "Redeliver 10?" }).waitFor();
  await page.getByRole("button", { name: "Redeliver", exact: true }).click();
  // With the script, the page shows the progress by itself.
  if (runsScript) await delivered("10").waitFor();
  else await until(page, () => delivered("10"));
  // Back leads to the question, which is no answer to a form: no browser asks to send that again.
  await page.goBack();
  await page.getByRole("heading", { name: "Redeliver 0?" }).waitFor();
  await page.goForward();
  await page.goto(`${page.url().replace(/redeliveries.*/, "redeliveries/confirm")}`);
  await page.getByRole("heading", { name: "Nothing to redeliver" }).waitFor();
  await page.getByRole("main").getByRole("link", { name: "Back" }).click();
  await page.getByRole("navigation").getByRole("link", { name: "Failed" }).click();
  // The test that failed is no event: it is listed, and not sent again.
  await page.locator("tbody tr", { hasText: "webhook.ping" }).waitFor();
  assert.equal(await page.getByRole("checkbox").count(), 0);
  assert.equal(await page.getByRole("button", { name: /Redeliver/ }).count(), 0);

  // A day begins in the zone that the page's times are in.
  await page.getByLabel("Since").fill("2026-01-15");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByRole("link", { name: "Clear" }).waitFor();
  const since = new URL(page.url()).searchParams.get("since");
  assert.equal(since, runsScript ? "2026-01-14T23:00:00.000Z" : "2026-01-15");
  assert.equal(await page.getByLabel("Since").inputValue(), "2026-01-15");
  assert.equal(await page.getByText("(UTC)").isVisible(), !runsScript);

  const zone = await page.locator("#zone").textContent();
  assert.match(zone, runsScript ? /Europe\/Berlin/ : /^UTC$/);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await page.goBack();
  await page.reload();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
}

const LOOKS = {
  light: { colorScheme: "light", viewport: { width: 1200, height: 800 } },
  dark: { colorScheme: "dark", viewport: { width: 1200, height: 800 } },
  phone: { colorScheme: "light", viewport: { width: 360, height: 844 } },
};

/** Widths of tablets, and of zoomed windows, at which tables are widest. */
const WIDTHS = [660, 768, 880];

/** Every page in every look: no violation, no overflow, and not too heavy. */
async function pages() {
  await become(503);
  const page = await visitor(LOOKS.light);
  await enter(page, stage.links[0]);
  const empty = page.url();
  const found = { empty, empty_failed: empty.replace("webhooks", "failed") };
  const base = empty.replace(/\/webhooks$/, "");
  await look(page, found);
  await page.goto(empty);
  await add(page, "/hook");
  found.webhook = page.url();
  const type = page.getByLabel("Type of the test");
  await type.selectOption("plan.changed");
  await type.blur();
  await refreshed(page);
  assert.equal(await type.inputValue(), "plan.changed");
  await focusStays(page);
  await become(410);
  await post(6);
  const failed = page.getByRole("button", { name: "Redeliver all 6 that match" });
  await page.goto(`${base}/failed`);
  await until(page, () => failed);
  await become(200);
  await post(20);
  // What fails from now on waits, and then the webhook pauses.
  await set("pausing");
  await become(503);
  await post(3);
  await page.goto(found.webhook);
  await until(page, () => page.getByText("Deliveries are paused"));
  await page.goto(`${base}/deliveries?state=waiting`);
  await page.locator("tbody a").first().click();
  await attemptsStayClosed(page);
  await page.goto(`${base}/failed`);
  await page.locator("tbody a").first().click();
  await look(page, {
    list: empty,
    webhook: found.webhook,
    form: `${base}/webhooks/new`,
    edit: `${found.webhook}/edit`,
    rotate: `${found.webhook}/rotate`,
    delete: `${found.webhook}/delete`,
    failed: `${base}/failed`,
    nothing: `${base}/failed?type=plan.changed`,
    refused: `${base}/deliveries?event=%20nonsense%20`,
    deliveries: `${base}/deliveries`,
    delivery: page.url(),
    missing: `${base}/webhooks/wh_none`,
  });
  await refusedField(page, `${base}/webhooks/new`);
  await page.goto(`${base}/failed`);
  await failed.click();
  await inspect(page, "redeliver", "light");
  await page.getByRole("button", { name: "Redeliver", exact: true }).click();
  await page.getByRole("heading", { name: "Redelivery" }).waitFor();
  await look(page, { job: page.url(), jobs: `${base}/redeliveries` });
  await page.goto(`${found.webhook}/rotate`);
  await page.getByRole("button", { name: "Rotate" }).click();
  await inspect(page, "secret", "light");
  await page.getByRole("link", { name: "I have kept it" }).click();
  await page.getByRole("heading", { name: `${stage.receiver}/hook` }).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "Rotate the secret?" }).waitFor();
  const stranger = await visitor(LOOKS.light);
  await look(stranger, { link: stage.links[1], sign_in: base.replace(/workspaces.*/, "sign-in") });
}

/** Waits until the script has loaded the content again. */
async function refreshed(page) {
  await page.evaluate(() => document.querySelector("h1").setAttribute("data-before", ""));
  await page.locator("h1[data-before]").waitFor({ state: "detached" });
}

/** Waits until the script has loaded the content again, with a change of it. */
async function changed(page, from, to) {
  await page.evaluate(([from, to]) => {
    const fetched = globalThis.fetched ??= globalThis.fetch;
    globalThis.fetch = async (...request) => {
      const body = await (await fetched(...request)).text();
      return new Response(body.replace(new RegExp(from), to));
    };
  }, [from, to]);
  await refreshed(page);
}

/** The focus follows its control, and passes to no other one when that is gone. */
async function focusStays(page) {
  const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
  const isOnContent = () => page.evaluate(() => document.activeElement.id === "content");
  await page.getByRole("link", { name: "Edit" }).focus();
  await changed(page, '<a class="button"', "<button>Earlier</button>$&");
  assert.equal(await focused(), "Edit");
  await changed(page, '<a class="button"[^>]*>Edit</a>', "");
  assert.ok(await isOnContent(), await focused());
  // A form of the same words about another thing is another one.
  const forms = (...ids) => ids.map((id) => `<form><input type="hidden" value="${id}"><button>Drop</button></form>`).join("");
  await changed(page, '<a class="button"', `${forms("one", "two")}$&`);
  await page.getByRole("button", { name: "Drop" }).first().focus();
  await changed(page, '<a class="button"', `${forms("two")}$&`);
  assert.ok(await isOnContent(), await focused());
}

/** A field that the API refuses is marked, has the focus, and words that a form can use. */
async function refusedField(page, form) {
  await page.goto(form);
  await page.getByLabel("Address").fill(`${stage.receiver}/other`);
  await page.getByLabel("user.created", { exact: true }).check();
  await page.getByText("Headers, pace, answers, metadata").click();
  const field = page.getByLabel("Requests a minute, at most");
  await field.fill("many");
  await page.getByRole("button", { name: "Add the webhook" }).click();
  await page.getByText("must be a whole number or empty").waitFor();
  assert.equal(await field.getAttribute("aria-invalid"), "true");
  assert.ok(await field.evaluate((one) => one === document.activeElement));
  await inspect(page, "form_refused", "light");
}

/** An attempt that its reader closed stays closed when a newer one comes. */
async function attemptsStayClosed(page) {
  const newest = page.locator("details.attempt").first();
  const number = /attempt \d+ ·/.exec(await newest.innerText())[0];
  await newest.locator("summary").click();
  const newer = '<details class="attempt" open id="attempt-999"><summary>newer</summary></details>';
  await changed(page, '<details class="attempt"', `${newer}$&`);
  const isOpen = (text) =>
    page.locator("details.attempt", { hasText: text }).evaluate((one) => one.open);
  assert.deepEqual([await isOpen("newer"), await isOpen(number)], [true, false]);
}

async function look(page, urls) {
  for (const [name, options] of Object.entries(LOOKS)) {
    await page.emulateMedia({ colorScheme: options.colorScheme });
    await page.setViewportSize(options.viewport);
    for (const [label, url] of Object.entries(urls)) {
      await page.goto(url);
      await inspect(page, label, name);
      for (const width of name === "light" ? WIDTHS : []) {
        await page.setViewportSize({ width, height: 800 });
        await fits(page, label, `${width} px`);
      }
      await page.setViewportSize(options.viewport);
    }
  }
  await page.emulateMedia(LOOKS.light);
  await page.setViewportSize(LOOKS.light.viewport);
}

async function fits(page, label, name) {
  const width = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(width <= 0, `${label}, ${name}: ${width} px too wide`);
}

async function inspect(page, label, name) {
  if (stage.pictures) {
    await page.screenshot({ path: `${stage.pictures}/${label}-${name}.png`, fullPage: true });
    await page.screenshot({ path: `${stage.pictures}/${label}-${name}-top.png` });
  }
  await fits(page, label, name);
  assert.deepEqual(await hardToRead(page), [], `${label}, ${name}`);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }),
  );
  const lines = violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html}\n  ${node.failureSummary}`));
  assert.equal(lines.join("\n"), "", `${label}, ${name}`);
  const bytes = await page.evaluate(() =>
    performance.getEntries().reduce((sum, entry) => sum + (entry.decodedBodySize ?? 0), 0),
  );
  assert.ok(bytes <= PAGE_BYTES_MAX, `${label}, ${name}: ${bytes} bytes`);
}

/** Texts in pictures that are too small, or printed over each other. */
function hardToRead(page) {
  return page.evaluate(() => {
    const texts = [...document.querySelectorAll("main svg text")].filter((one) => one.getClientRects().length);
    const boxes = texts.map((one) => [one, one.getBoundingClientRect()]);
    const covers = ([a, one], [b, other]) =>
      a !== b && a.parentNode === b.parentNode && one.left < other.right && other.left < one.right &&
      one.top < other.bottom && other.top < one.bottom;
    const bad = boxes.filter((one) => one[1].height < 10 || boxes.some((other) => covers(one, other)));
    return bad.map(([one, { height }]) => `${one.textContent}, ${height} px high`);
  });
}

/** What is stored is shown as text, whatever it is. */
async function hostile() {
  const page = await visitor();
  await enter(page, stage.links[0]);
  const base = page.url().replace(/\/webhooks$/, "");
  await post(1, { name: stage.hostile });
  await page.goto(`${base}/deliveries`);
  await until(page, () => page.getByText("● Delivered"));
  const delivery = await page.locator("tbody a").first().getAttribute("href");
  const wrong = encodeURIComponent(stage.hostile);
  const webhook = `${base}/webhooks/${stage.webhook}`;
  for (const url of [
    webhook,
    `${webhook}/edit`,
    new URL(delivery, page.url()).href,
    `${base}/deliveries?event=${wrong}`,
    `${base}/failed?tenant=${wrong}&webhook=${wrong}&type=${wrong}&since=${wrong}&status=${wrong}`,
    `${base}/webhooks/${wrong}`,
    `${base.replace(/workspaces.*/, "enter")}?link=${wrong}`,
  ]) {
    await page.goto(url);
    const hacked = await page.evaluate(() => [
      globalThis.hacked,
      document.querySelectorAll(
        "[data-hacked], iframe, object, script:not([src]), style, [style], [onerror], [onload]",
      ).length,
    ]);
    assert.deepEqual(hacked, [undefined, 0], url);
  }
  // All of it is there, as text: the payload, the answer's body and header, what owners typed.
  await page.goto(new URL(delivery, page.url()).href);
  const shown = await page.innerText("main");
  assert.ok(shown.split("<img data-hacked").length > 3, shown);
  await page.goto(webhook);
  assert.ok((await page.innerText("main")).split("<img data-hacked").length > 2);
}

/** Where it got stuck, for the reader of the failure. */
process.on("uncaughtException", async (error) => {
  for (const context of browser.contexts()) {
    for (const page of context.pages()) {
      console.error(`${page.url()}\n${await page.innerText("body")}`);
    }
  }
  console.error(error);
  process.exit(1);
});

if (what === "journey") await journey(await visitor(), true);
if (what === "plain") await journey(await visitor({ javaScriptEnabled: false }), false);
if (what === "pages") await pages();
if (what === "hostile") await hostile();
await browser.close();
console.log("done");
