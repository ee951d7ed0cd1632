/* Sets dark or light before the first paint. A classic script in the head: a module comes later. */
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("lehr.theme");
    } catch {
      return null; // Storage is disabled: use the system's theme.
    }
  };
  const apply = () => {
    document.documentElement.dataset.theme = chosen() ?? (dark.matches ? "dark" : "light");
  };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("storage", (event) => {
    if (event.key === "lehr.theme") apply();
  });
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || !event.target.closest("#theme")) return;
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    const system = dark.matches ? "dark" : "light";
    try {
      if (next === system) localStorage.removeItem("lehr.theme");
      else localStorage.setItem("lehr.theme", next);
    } catch {
      document.documentElement.dataset.theme = next;
    }
    apply();
  });
})();
