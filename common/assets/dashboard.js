// For comfort only: pages work without it.
"use strict";

const REFRESH_MS = 5000;

// Times in the reader's zone; UTC stays in the tooltip.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const localOfDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function localise(root) {
  for (const time of root.querySelectorAll("time:not([data-relative])")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.title ||= time.textContent;
    time.textContent = local.format(date);
  }
  for (const text of root.querySelectorAll("text[data-time]")) {
    text.textContent = localOfDay.format(new Date(text.dataset.time));
  }
}

// Days of filters begin at the reader's midnight; without the script at that of UTC.
function localiseDays(root) {
  for (const note of root.querySelectorAll("[data-utc]")) note.hidden = true;
  for (const day of root.querySelectorAll("input[data-since]")) {
    const since = new Date(day.dataset.since);
    if (Number.isNaN(since.getTime())) continue;
    since.setMinutes(since.getMinutes() - since.getTimezoneOffset());
    day.value = day.defaultValue = since.toISOString().slice(0, 10);
  }
}

document.addEventListener("formdata", (event) => {
  const day = event.target.querySelector("input[data-since]");
  if (day?.value) event.formData.set(day.name, new Date(`${day.value}T00:00`).toISOString());
});

// Buttons that need the script are hidden without it.
function arm(root) {
  // Browsers lend the clipboard to pages over TLS and of this machine only.
  const works = navigator.clipboard ? "[data-copy], [data-show]" : "[data-show]";
  for (const button of root.querySelectorAll(works)) button.hidden = false;
  for (const button of root.querySelectorAll("[data-show]")) {
    document.getElementById(button.dataset.show)?.classList.add("covered");
  }
  localise(root);
  localiseDays(root);
}

document.addEventListener("click", async (event) => {
  // Back leads to what was before the page of this link, which is the answer to a form.
  const link = event.target.closest("a[data-replaces]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    location.replace(link.href);
  }
  const button = event.target.closest("button");
  if (button?.dataset.copy) {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  }
  if (button?.dataset.show) {
    const covered = document.getElementById(button.dataset.show).classList.toggle("covered");
    button.textContent = covered ? "Show" : "Hide";
  }
});

// How many are ticked.
document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-selection]");
  const count = form?.querySelector("[data-count]");
  if (count) {
    const ticked = form.querySelectorAll("input[name=delivery]:checked").length;
    count.textContent = ticked ? ` (${ticked})` : "";
  }
});

// Whether the reader is in the middle of something that a refresh would take away.
function isBusy(main) {
  const focused = document.activeElement;
  const types = focused !== main && main.contains(focused) && focused.matches("input, select, textarea");
  return types || !document.getSelection().isCollapsed;
}

// The identity of a details element: its id, or else its place on the page.
function openable(main) {
  return [...main.querySelectorAll("details")].map((one, index) => [one.id || index, one]);
}

// Whether a field is not as the page had it.
function isChanged(field) {
  if (field.options) return [...field.options].some((one) => one.selected !== one.defaultSelected);
  return field.value !== field.defaultValue || field.checked !== field.defaultChecked;
}

// What tells a control from others: where it leads, or what it does to what.
function identity(control) {
  const { form, dataset } = control;
  const about = form ? [...form.querySelectorAll("[type=hidden]")].map(({ value }) => value) : [];
  const href = control.getAttribute("href");
  const label = control.getAttribute("aria-label");
  const shown = href ?? dataset.copy ?? dataset.show ?? label ?? control.textContent;
  return JSON.stringify([
    control.tagName, control.closest("[id]").id, shown, form?.getAttribute("action"), about,
    control.name, control.value,
  ]);
}

// The controls of this identity: they do the same.
function alike(main, wanted) {
  const controls = [...main.querySelectorAll("a, button, summary, input, select, [tabindex]")];
  return controls.filter((control) => identity(control) === wanted);
}

async function refresh() {
  const main = document.querySelector("main[data-refresh]");
  if (!main || document.hidden || isBusy(main)) return;
  const response = await fetch(location.href, { headers: { accept: "text/html" } });
  // Not signed in any more, or away: the page stays as it is, and a click shows why.
  if (!response.ok) return;
  const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
  if (!next || isBusy(main)) return;
  const open = new Map(openable(main).map(([key, one]) => [key, one.open]));
  const focused = document.activeElement;
  const isInside = focused !== main && main.contains(focused);
  const was = isInside && identity(focused);
  const at = isInside && alike(main, was).indexOf(focused);
  arm(next);
  for (const [key, one] of openable(next)) one.open = open.get(key) ?? one.open;
  for (const { id, value, checked } of [...main.querySelectorAll("input, select, textarea")].filter(isChanged)) {
    const field = id && next.querySelector(`#${CSS.escape(id)}`);
    if (field) Object.assign(field, { value, checked });
  }
  main.replaceChildren(...next.childNodes);
  if (!next.hasAttribute("data-refresh")) main.removeAttribute("data-refresh");
  // What is gone leaves the focus to no other control: Enter would do something else.
  if (isInside) (alike(main, was)[at] ?? main).focus({ preventScroll: true });
}

arm(document);
const zone = document.getElementById("zone");
if (zone) zone.textContent = `your zone, ${local.resolvedOptions().timeZone}; UTC is in the tooltips`;
setInterval(() => refresh().catch(() => {}), REFRESH_MS);
