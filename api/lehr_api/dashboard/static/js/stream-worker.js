/**
 * One event stream for all tabs of the browser.
 *
 * Browsers open at most six connections to an HTTP/1.1 server: with a stream a tab, the seventh
 * tab would load nothing. Visible tabs join; hidden tabs leave.
 */

const KINDS = ["run", "sweep", "rollout", "metrics", "cluster"];
const RETRY_MS = 3000;

/**
 * The ports, and whether each needs the growth of logs: few pages do, and it is half of all events. @type
 * {Map<MessagePort, boolean>}
 */
const ports = new Map();
/** Whether the stream has the growth of logs. */
let logs = false;
/** @type {EventSource | null} */
let source = null;
/**
 * The stream that `source` takes over from: it goes on until then, so that no event is lost. @type {EventSource | null}
 */
let older = null;
let state = "connecting";

/** @param {unknown} message */
function post(message) {
  for (const port of ports.keys()) port.postMessage(message);
}

/** @param {string} next */
function become(next) {
  state = next;
  post({ state });
}

function connect() {
  const needed = [...ports.values()].includes(true);
  if (source && (logs || !needed)) return;
  older?.close();
  older = source;
  logs = needed;
  const opened = new EventSource(
    `/api/v1/stream?gathered=true&${[...KINDS, ...(logs ? ["log"] : [])].map((kind) => `kind=${kind}`).join("&")}`
  );
  source = opened;
  opened.onopen = () => become("live");
  opened.onerror = () => {
    // The browser reconnects by itself, except when the server answered with an error.
    if (opened.readyState === EventSource.CLOSED && source === opened) disconnect();
    become("lost");
    if (opened.readyState !== EventSource.CLOSED) return;
    setTimeout(() => ports.size && connect(), RETRY_MS);
  };
  opened.addEventListener("hello", (event) => {
    older?.close();
    older = null;
    post({ events: [["hello", JSON.parse(event.data)]] });
  });
  opened.addEventListener("batch", (event) => post({ events: JSON.parse(event.data) }));
}

function disconnect() {
  source?.close();
  older?.close();
  source = null;
  older = null;
  state = "connecting";
}

/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ event) => {
  const port = event.ports[0];
  port.onmessage = ({ data }) => {
    if (data === "join" || data === "join logs") {
      ports.set(port, data === "join logs");
      port.postMessage({ state });
      connect();
    } else if (data === "leave") {
      ports.delete(port);
      if (!ports.size) disconnect();
    }
  };
};
