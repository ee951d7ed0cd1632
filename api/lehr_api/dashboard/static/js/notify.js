/** Browser notifications when a run ends or has an alert, switched by the button in the header. */

import { get } from "./api.js";
import { byId } from "./dom.js";
import { newsOf } from "./news.js";
import { toast } from "./notices.js";
import { ENDED } from "./status.js";
import { attendHidden, on, onCatchUp } from "./stream.js";

const KEPT = "lehr.notify";
const ICON = new URL("../icon.svg", import.meta.url).href;
/** Runs that one request asks for. */
const MOST = 100;
const GOING_ON = ["queued", "starting", "running", "stopping", "paused"];

/** @type {Map<string, import("./news.js").Seen>} */
const seen = new Map();

const isOn = () => localStorage.getItem(KEPT) === "on" && Notification.permission === "granted";

/** @param {any} run */
function announce(run) {
  const news = newsOf(seen.get(run.id), run);
  seen.set(run.id, run);
  if (!isOn()) return;
  for (const { title, body } of news) {
    // Of several tabs, each shows the same notification: one tag shows it once.
    const note = new Notification(title, { body, tag: `${run.id} ${title} ${body}`, icon: ICON });
    note.onclick = () => {
      window.focus();
      location.assign(`/runs/${run.id}`);
    };
  }
}

/** Learn which runs go on: the first event of a run may be its end. */
async function learn() {
  const page = await get("/runs", { state: GOING_ON, limit: 2 * MOST });
  for (const run of page.items) if (!seen.has(run.id)) seen.set(run.id, run);
}

/** Announce what has happened to the known runs while no events came. */
async function catchUp() {
  if (!isOn()) return;
  const open = [...seen].filter(([, run]) => !ENDED.has(run.state)).map(([id]) => id);
  for (let i = 0; i < open.length; i += MOST) {
    const page = await get("/runs", { run: open.slice(i, i + MOST), limit: MOST });
    page.items.forEach(announce);
  }
  await learn();
}

function attend() {
  attendHidden(isOn());
  if (isOn()) learn().catch(() => undefined);
}

/** @param {HTMLElement} button */
function show(button) {
  button.setAttribute("aria-pressed", String(isOn()));
  button.title = isOn() ? "Notifications are on: this browser shows when a run ends or has an alert" : "Notify when a run ends or has an alert";
}

/** @param {HTMLElement} button */
async function toggle(button) {
  if (isOn()) {
    localStorage.setItem(KEPT, "off");
  } else if ((await Notification.requestPermission()) === "granted") {
    localStorage.setItem(KEPT, "on");
    toast("Notifications are on, while a page of Lehr is open.");
  } else {
    toast("The browser does not allow notifications for this address. Allow them in its settings.", { bad: true });
  }
  attend();
  show(button);
}

export function installNotifications() {
  const button = byId("notify");
  if (!("Notification" in globalThis)) {
    button.remove();
    return;
  }
  show(button);
  button.addEventListener("click", () => toggle(button));
  on("run", announce, { hidden: true });
  onCatchUp(() => catchUp().catch(() => undefined));
  // Let the page send its own requests first.
  setTimeout(attend);
}
