// Light or dark: what the system says, unless somebody has chosen here. In the head, so that no page flashes.
"use strict";
(() => {
  const words = { "": "theme: auto", light: "theme: light", dark: "theme: dark" };
  const known = () => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } };
  const apply = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(known());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = words[known()] || words[""]; };
    button.hidden = false;
    say();
    button.addEventListener("click", () => {
      const next = { "": "dark", dark: "light", light: "" }[known()] ?? "";
      try { localStorage.setItem("theme", next); } catch { /* it holds for this page then */ }
      apply(next);
      say();
    });
  });
})();
