/** What changes, as it changes. */

/**
 * @typedef {"run" | "sweep" | "rollout" | "metrics" | "log" | "cluster"} EventName
 * @typedef {"connecting" | "live" | "lost"} Connection
 */

const EVENTS = ["hello", "run", "sweep", "rollout", "metrics", "log", "cluster"];

const target = new EventTarget();
/** @type {Connection} */
let connection = "connecting";
let wasLost = false;

/** @param {Connection} next */
function become(next) {
  if (next === connection) return;
  if (next === "lost") wasLost = true;
  connection = next;
  target.dispatchEvent(new CustomEvent("connection", { detail: next }));
  if (next === "live" && wasLost) {
    wasLost = false;
    target.dispatchEvent(new CustomEvent("catchup"));
  }
}

/**
 * @param {string} name
 * @param {any} detail
 */
function emit(name, detail) {
  // The server had to drop events for a reader that was too slow.
  if (name === "hello" && detail.missed) target.dispatchEvent(new CustomEvent("catchup"));
  target.dispatchEvent(new CustomEvent(name, { detail }));
}

/** @returns {{join: () => void, leave: () => void}} */
function shared() {
  const worker = new SharedWorker(new URL("./stream-worker.js", import.meta.url));
  worker.port.onmessage = ({ data }) => {
    if (data.state) become(data.state);
    else emit(data.event, data.data);
  };
  return {
    join: () => worker.port.postMessage("join"),
    leave: () => worker.port.postMessage("leave"),
  };
}

/**
 * Where the browser has no shared workers (Android), each visible tab has its own stream.
 *
 * @returns {{join: () => void, leave: () => void}}
 */
function own() {
  /** @type {EventSource | null} */
  let source = null;
  const join = () => {
    const opened = new EventSource("/api/v1/stream");
    source = opened;
    opened.onopen = () => become("live");
    opened.onerror = () => {
      become("lost");
      if (opened.readyState === EventSource.CLOSED) setTimeout(() => source === opened && join(), 3000);
    };
    for (const name of EVENTS) {
      opened.addEventListener(name, (event) => emit(name, JSON.parse(/** @type {MessageEvent} */ (event).data)));
    }
  };
  return {
    join,
    leave: () => {
      source?.close();
      source = null;
    },
  };
}

const link = "SharedWorker" in globalThis ? shared() : own();
let joined = false;

function attend() {
  const wanted = !document.hidden;
  if (wanted === joined) return;
  joined = wanted;
  if (wanted) {
    link.join();
  } else {
    // What happens meanwhile is not told: catch up when the page shows again.
    wasLost = true;
    connection = "connecting";
    link.leave();
  }
}

document.addEventListener("visibilitychange", attend);
addEventListener("pagehide", () => {
  if (joined) link.leave();
  joined = false;
  wasLost = true;
  connection = "connecting";
});
addEventListener("pageshow", attend);
// After this turn, so that whoever imports this module listens before the first message.
queueMicrotask(attend);

/**
 * @param {EventName} name
 * @param {(data: any) => void} listener
 */
export function on(name, listener) {
  target.addEventListener(name, (event) => listener(/** @type {CustomEvent} */ (event).detail));
}

/**
 * Told when events may have been missed: fetch what is shown anew.
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
