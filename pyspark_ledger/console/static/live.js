// Each time the server has looked, the parts of the page with data-live are asked for again, and those that differ are
// put in place. A part in which somebody types, or has selected something, is left alone until the next time.
"use strict";
(() => {
  const state = document.getElementById("live-state");
  const announce = document.getElementById("announce");
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (!window.EventSource) return;

  let busy = false, again = false, seen = 0;

  const inUse = (part) => {
    const active = document.activeElement;
    if (active && active !== part && part.contains(active) && active.matches("input, select, textarea")) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  };

  const put = (part, fresh) => {
    if (part.innerHTML === fresh.innerHTML || inUse(part)) return;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = part.scrollLeft;
    const said = fresh.dataset.announce;
    if (said && said !== part.dataset.announce) { announce.textContent = said; part.dataset.announce = said; }
    part.replaceChildren(...fresh.childNodes);
    part.scrollLeft = scrolled;
    if (focused) {
      const same = [...part.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused);
      if (same) same.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    if (document.hidden || !parts().length) return;
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of parts()) {
        const fresh = page.getElementById(part.id);
        if (fresh) put(part, fresh);
      }
    } catch { /* the next look may be better */ } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  };

  const show = (isThere) => {
    state.hidden = false;
    state.classList.toggle("away", !isThere);
    state.querySelector(".said").textContent = isThere ? "live" : "not connected";
  };

  const events = new EventSource("/api/v1/events");
  events.addEventListener("open", () => show(true));
  events.addEventListener("error", () => show(false));
  events.addEventListener("look", (event) => {
    document.documentElement.dataset.look = event.lastEventId;
    if (seen++) refresh();
  });
  document.addEventListener("visibilitychange", refresh);
})();
