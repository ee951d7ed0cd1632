/** What the reader of this page may do: buttons that the server would refuse are disabled, with the reason. */

/** In order: each may do what those before it may. */
const ROLES = ["viewer", "researcher", "admin"];

/**
 * Return why somebody may not do what needs a role; null if they may.
 *
 * @param {string} needed
 * @param {{role?: string, person?: string}} own of the token that the page was opened with
 */
export function refusal(needed, { role, person }) {
  // A page without a role comes from a server that does not send it: the answer decides.
  if (!role || ROLES.indexOf(role) >= ROLES.indexOf(needed)) return null;
  return `Needs the role ${needed}; your token${person ? ` ${person}` : ""} has the role ${role}.`;
}

/**
 * Return the props of a button that changes something: disabled for those who may not press it.
 *
 * @param {import("./patch.js").Props} props
 * @param {"researcher" | "admin"} [needed]
 * @returns {import("./patch.js").Props}
 */
export function acts(props, needed = "researcher") {
  const why = refusal(needed, document.documentElement.dataset);
  return why === null ? props : { ...props, disabled: true, title: why, onclick: null };
}
