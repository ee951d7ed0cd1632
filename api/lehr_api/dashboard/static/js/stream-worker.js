/**
 * One event stream for all tabs of the browser.
 *
 * Browsers open at most six connections to an HTTP/1.1 server: with a stream a tab, the seventh
 * tab would load nothing. Visible tabs join; hidden tabs leave, unless they notify.
 */

const EVENTS = ["hello", "run", "sweep", "rollout", "metrics", "log", "cluster"];
const RETRY_MS = 3000;

/** @type {Set<MessagePort>} */
const ports = new Set();
/** @type {EventSource | null} */
let source = null;
let state = "connecting";

/** @param {unknown} message */
function post(message) {
  for (const port of ports) port.postMessage(message);
}

/** @param {string} next */
function become(next) {
  state = next;
  post({ state });
}

function connect() {
  if (source) return;
  const opened = new EventSource("/api/v1/stream");
  source = opened;
  opened.onopen = () => become("live");
  opened.onerror = () => {
    become("lost");
    // The browser reconnects by itself, except when the server answered with an error.
    if (opened.readyState !== EventSource.CLOSED) return;
    opened.close();
    if (source === opened) source = null;
    setTimeout(() => ports.size && connect(), RETRY_MS);
  };
  for (const name of EVENTS) {
    opened.addEventListener(name, (event) => post({ event: name, data: JSON.parse(event.data) }));
  }
}

function disconnect() {
  source?.close();
  source = null;
  state = "connecting";
}

/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ event) => {
  const port = event.ports[0];
  port.onmessage = ({ data }) => {
    if (data === "join") {
      ports.add(port);
      port.postMessage({ state });
      connect();
    } else if (data === "leave") {
      ports.delete(port);
      if (!ports.size) disconnect();
    }
  };
};
