/* A stream as it goes on: each event is what one record of the session changes of the page. */
"use strict";

(() => {
  const stream = document.getElementById("stream");
  const state = document.getElementById("live-state");
  if (!stream?.dataset.live) return;
  let source = null;
  let ended = false;

  const atBottom = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;

  /* What somebody has opened stays open when its row is drawn anew. */
  const opened = (row) => [...row.querySelectorAll("details[data-part][open]")].map((part) => part.dataset.part);
  const draw = (change) => {
    const row = document.getElementById(change.row);
    if (row) {
      const parts = opened(row);
      row.outerHTML = change.html;
      const drawn = document.getElementById(change.row);
      for (const part of drawn.querySelectorAll("details[data-part]")) part.open ||= parts.includes(part.dataset.part);
    } else if (change.new) {
      const place = change.inside ? document.getElementById(`${change.inside}-inner`) : stream;
      const item = document.createElement("li");
      item.innerHTML = change.html;
      const inner = document.createElement("ol");
      inner.className = "inner";
      inner.id = `${change.row}-inner`;
      item.append(inner);
      (place ?? stream).append(item);
    }
  };

  /* Text that does not go on where this page's text ends was seen already, or waits for its row to be drawn anew. */
  const goOn = (change) => {
    const words = document.querySelector(`#${change.row} > .said`);
    if (!words || Number(words.dataset.length) !== change.at) return;
    words.insertAdjacentHTML("beforeend", change.html);
    words.dataset.length = change.to;
  };

  const take = (event) => {
    const change = JSON.parse(event.data);
    if (change !== null) {
      const follows = atBottom();
      if (change.at === undefined) draw(change);
      else goOn(change);
      document.getElementById("nothing-yet")?.remove();
      if (follows) scrollTo({ top: document.documentElement.scrollHeight });
    }
    stream.dataset.place = event.lastEventId;
  };

  const say = (words) => {
    state.textContent = words;
    state.classList.toggle("on", words === "Live");
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const end = (words) => {
    ended = true;
    close();
    say(words);
  };
  const open = () => {
    const address = new URL(stream.dataset.live, location.href);
    address.searchParams.set("after", stream.dataset.place);
    source = new EventSource(address);
    source.onopen = () => say("Live");
    source.onmessage = take;
    source.addEventListener("reload", (event) => end(event.data));
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED) end("The viewer sends nothing more.");
      else say("Connecting again …");
    };
  };
  /* A browser has few connections to one server: a page that nobody sees gives its own back, and resumes later. */
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!source && !ended) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && !ended && open());
  if (!document.hidden) open();
})();
