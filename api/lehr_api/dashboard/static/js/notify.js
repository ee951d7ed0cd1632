/** Browser notifications when a run ends or has an alert, switched by the button in the header. */

import { byId } from "./dom.js";
import { newsOf } from "./news.js";
import { toast } from "./notices.js";
import { on } from "./stream.js";

const KEPT = "lehr.notify";

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
    const note = new Notification(title, { body, tag: `${run.id} ${title} ${body}`, icon: "/static/icon.svg" });
    note.onclick = () => {
      window.focus();
      location.assign(`/runs/${run.id}`);
    };
  }
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
  on("run", announce);
}
