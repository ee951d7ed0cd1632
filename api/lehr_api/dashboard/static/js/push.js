/** The button that lets the server send messages to this browser. Secure addresses only have what it needs. */

import { get, put } from "./api.js";
import { byId } from "./dom.js";
import { toast, tryTo } from "./notices.js";

const button = /** @type {HTMLButtonElement} */ (byId("notify"));

/** @param {PushSubscription | null} subscription */
function show(subscription) {
  button.hidden = false;
  button.textContent = "Notify";
  button.setAttribute("aria-pressed", String(subscription !== null));
  button.title = subscription ?
    "This browser gets each alert and end of your runs. Click to end that." :
    "Send each alert and end of your runs to this browser, also while no page is open.";
}

const registered = () => navigator.serviceWorker.getRegistration("/");
const subscribed = async () => (await registered())?.pushManager.getSubscription() ?? null;

async function subscribe() {
  if (await Notification.requestPermission() !== "granted") {
    throw new Error("Your browser does not let this page show messages. Allow it in the page's settings.");
  }
  const worker = new URL("service_worker.js", import.meta.url);
  await navigator.serviceWorker.register(worker, { scope: "/" });
  const { pushManager } = await navigator.serviceWorker.ready;
  const { public_key: applicationServerKey } = await get("/push");
  const subscription = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey });
  await put("/push", subscription).catch(async (error) => {
    await subscription.unsubscribe();
    throw error;
  });
  return subscription;
}

button.addEventListener("click", () => tryTo(async () => {
  const before = await subscribed();
  // The push service tells the server at the next message.
  await before?.unsubscribe();
  show(before ? null : await subscribe());
  if (before) toast("This browser gets no more messages.");
}));

subscribed().then(show);
