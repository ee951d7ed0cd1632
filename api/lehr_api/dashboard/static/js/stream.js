/** Subscribe to the server's event stream. */

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
  // The server has dropped events, because this reader was too slow.
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
 * Open a stream for this tab alone, for browsers without shared workers (Android).
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
    // Hidden pages receive no events: catch up when the page is visible again.
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
// Connect after this turn of the event loop, so that importers can add listeners before the first message.
queueMicrotask(attend);

/**
 * @param {EventName} name
 * @param {(data: any) => void} listener
 */
export function on(name, listener) {
  target.addEventListener(name, (event) => listener(/** @type {CustomEvent} */ (event).detail));
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
