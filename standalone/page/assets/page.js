// Replaces the parts of the page that have changed. The page is whole without it.
"use strict";
(() => {
  const status = document.getElementById("live"), main = document.getElementById("main");
  let version = document.body.dataset.version, stream = null;

  // mark says how to find the focused element again in a newer part: by what it leads to, or by its name.
  const mark = (e) => e.getAttribute("href") ? `[href=${JSON.stringify(e.getAttribute("href"))}]` :
    e.getAttribute("name") ? `[name=${JSON.stringify(e.getAttribute("name"))}]` : "button";

  function show(page) {
    const next = new DOMParser().parseFromString(`<main>${page.main}</main>`, "text/html").querySelector("main");
    const old = [...main.children], all = [...next.children];
    const focused = main.contains(document.activeElement) && document.activeElement !== main ? document.activeElement : null;
    const again = focused && mark(focused), changed = [];
    const same = old.length === all.length && old.every((e, i) => e.id === all[i].id && e.tagName === all[i].tagName);
    all.forEach((part, i) => {
      if (same && old[i].isEqualNode(part)) return;
      const title = part.querySelector("h2, caption") || part;
      changed.push(part.getAttribute("aria-label") || title.textContent.trim());
      // What is being typed is not taken away.
      if (same && !(old[i].contains(focused) && focused.tagName === "INPUT")) old[i].replaceWith(part);
    });
    if (!same) main.replaceChildren(...next.childNodes);
    document.title = `${page.title} – volplane`;
    if (focused && !focused.isConnected) (main.querySelector(again) || main).focus({ preventScroll: true });
    status.textContent = `Live. Changed at ${new Date().toLocaleTimeString()}: ${changed.join(", ")}.`;
  }

  function open() {
    if (stream || document.hidden) return;
    const url = new URL(document.body.dataset.live, location.href);
    url.searchParams.set("version", version);
    stream = new EventSource(url);
    stream.onopen = () => { status.textContent = `Live since ${new Date().toLocaleTimeString()}.`; };
    stream.addEventListener("page", (e) => { version = e.lastEventId; show(JSON.parse(e.data)); });
    stream.onerror = () => {
      status.textContent = stream.readyState === EventSource.CLOSED ?
        "Not live any more: ask for a new link with volplane page." : "The connection is lost; trying again.";
      if (stream.readyState === EventSource.CLOSED) stream = null;
    };
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  // A browser has few connections to one host: only a tab that is seen holds one.
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
})();
