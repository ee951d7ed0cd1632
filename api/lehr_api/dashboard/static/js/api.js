/** Calls of the public REST API. The dashboard has no other source of data. */

/** An error answer of the API. */
export class ApiError extends Error {
  /** @param {{status: number, title: string, detail: string, code: string, hint?: string | null}} problem */
  constructor(problem) {
    super(problem.detail || problem.title);
    this.status = problem.status;
    this.code = problem.code;
    this.hint = problem.hint ?? null;
  }
}

const UNREACHABLE = {
  status: 0, code: "unreachable", title: "No answer", detail: "Lehr's server does not answer.",
  hint: "Start it on its machine: lehr up",
};

/**
 * @param {string} path
 * @param {Record<string, unknown>} [params] a list becomes a repeated parameter; null and undefined are left out
 */
export function url(path, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(key, String(one));
    }
  }
  const text = query.toString();
  return `/api/v1${path}${text ? `?${text}` : ""}`;
}

/** By how much the clock of the server's last answer is ahead of the browser's, in milliseconds. */
let ahead = 0;

/** Return the time by the server's clock, in seconds since the epoch. */
export const serverTime = () => (Date.now() + ahead) / 1000;

let loggingOut = false;

/** Let the logout open the next page: until then, refused requests open none. */
export function logOut() {
  loggingOut = true;
  // The browser's Back button may bring this page back as it was.
  addEventListener("pageshow", () => {
    loggingOut = false;
  }, { once: true });
}

/** @param {string} address @param {RequestInit} init */
async function request(address, init) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...init });
  } catch {
    throw new ApiError(UNREACHABLE);
  }
  ahead = Date.parse(response.headers.get("Date") ?? "") - Date.now() || ahead;
  if (response.status === 401 && !loggingOut) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new ApiError({
      status: response.status,
      code: "error",
      title: response.statusText,
      detail: `The server answered ${response.status}.`,
      ...problem,
    });
  }
  return response;
}

/** @param {string} path @param {Record<string, unknown>} [params] @returns {Promise<any>} */
export const get = (path, params) => send("GET", path, undefined, params);

/** @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export const post = (path, body = undefined) => send("POST", path, body);

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export const put = (path, body) => send("PUT", path, body);

/** @param {string} path @returns {Promise<any>} */
export const remove = (path) => send("DELETE", path, undefined);

/** @param {string} method @param {string} path @param {unknown} body @param {Record<string, unknown>} [params] */
async function send(method, path, body, params) {
  const response = await request(url(path, params), {
    method,
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return response.status === 204 ? null : response.json();
}
