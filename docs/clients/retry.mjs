// Calls a URL, and waits after each 429 as docs/clients.md says.
// Usage: retry.mjs URL REQUESTS [TRIES], or retry.mjs --delays.
import { setTimeout as sleep } from "node:timers/promises";

const TRIES_MAX = 6;
const WAIT_MAX = 600; // seconds; a client gives up rather than come before Retry-After
const TIMEOUT = 30;

async function getWithRetries(url, triesMax = TRIES_MAX) {
  const waits = [];
  for (;;) {
    const [status, retryAfter] = await get(url);
    const wait = delay(waits.length, retryAfter, Math.random());
    if (status !== 429 || waits.length + 1 >= triesMax || wait > WAIT_MAX) return { status, waits };
    await sleep(Math.ceil(wait * 1000));
    waits.push(wait);
  }
}

/** Seconds before a retry, of which the first is number 0; `random` is from 0 to 1. */
function delay(retry, retryAfter, random) {
  return Math.max(retryAfter, Math.min(30, 2 ** retry) * (0.8 + 0.4 * random));
}

async function get(url) {
  const response = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT * 1000) });
  await response.arrayBuffer();
  const seconds = response.headers.get("Retry-After") ?? "";
  return [response.status, /^[0-9]+$/.test(seconds) ? Number(seconds) : 0];
}

const [url, requests, tries] = process.argv.slice(2);
if (url === "--delays") {
  console.log(JSON.stringify([0, 1, 2, 3, 4, 5, 6].map((retry) => delay(retry, 0, 0.5))));
} else {
  for (let sent = 0; sent < Number(requests); sent++) {
    const { status, waits } = await getWithRetries(url, tries && Number(tries));
    const rounded = waits.map((wait) => Number(wait.toFixed(2)));
    console.log(JSON.stringify({ status, tries: waits.length + 1, waits: rounded }));
  }
}
