/** Subscribe to the server's event stream. */

/**
 * @typedef {"run" | "sweep" | "rollout" | "metrics" | "log" | "cluster"} EventName
 * @typedef {"connecting" | "live" | "lost"} Connection
 */

const RETRY_MS = 3000;
const target = new EventTarget();
/** The events that this page listens to. @type {Set<EventName>} */
const heard = new Set();
/** @type {Connection} */
let connection = "connecting";
/** Whether events may have been missed: they are caught up with when the stream is open. */
let missed = false;

/** @param {Connection} next */
function become(next) {
  if (next === connection) return;
  connection = next;
  target.dispatchEvent(new CustomEvent("connection"));
  if (next === "lost") missed = true;
  if (next !== "live" || !missed) return;
  missed = false;
  target.dispatchEvent(new CustomEvent("catchup"));
}

/** @param {string} name @param {any} detail */
function emit(name, detail) {
  // The server has dropped events, because this reader was too slow.
  if (name === "hello" && detail.missed) target.dispatchEvent(new CustomEvent("catchup"));
  target.dispatchEvent(new CustomEvent(name, { detail }));
}

/** @type {EventSource | null} */
let source = null;

/** Open the stream. A hidden tab has none: a browser opens six connections to a server, whatever its tabs. */
function join() {
  const opened = new EventSource(
    `/api/v1/stream?gathered=true&${[...heard].map((name) => `kind=${name}`).join("&")}`
  );
  source = opened;
  opened.onopen = () => become("live");
  opened.onerror = () => {
    become("lost");
    // The browser reconnects by itself, except when the server answered with an error.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => source === opened && join(), RETRY_MS);
  };
  opened.addEventListener("hello", ({ data }) => emit("hello", JSON.parse(data)));
  opened.addEventListener("batch", ({ data }) => {
    for (const [name, detail] of JSON.parse(data)) emit(name, detail);
  });
}

function leave() {
  source?.close();
  source = null;
  connection = "connecting";
  missed = true;
}

function attend() {
  // Listeners receive no events while the page is hidden.
  if (document.hidden) leave();
  else if (!source) join();
}

document.addEventListener("visibilitychange", attend);
addEventListener("pagehide", leave);
addEventListener("pageshow", attend);
// Connect after this turn of the event loop, so that importers can add listeners before the first message.
queueMicrotask(attend);

/**
 * Call `listener` for each event, but not while the page is hidden: a catch-up follows when it is visible again.
 *
 * @param {EventName} name
 * @param {(data: any) => void} listener
 */
export function on(name, listener) {
  heard.add(name);
  target.addEventListener(name, (event) => {
    if (!document.hidden) listener(/** @type {CustomEvent} */ (event).detail);
  });
}

/**
 * Call `listener` when events may have been missed, so that it fetches the shown data again.
 *
 * @param {() => void} listener
 */
export function onCatchUp(listener) {
  target.addEventListener("catchup", () => listener());
}

/** @param {(state: Connection) => void} listener */
export function onConnection(listener) {
  target.addEventListener("connection", () => listener(connection));
  listener(connection);
}
