/* Pages that go on: each event is what one record of the session changes of its stream, or a row of its timeline. */
"use strict";

const atBottom = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
const toBottom = () => scrollTo({ top: document.documentElement.scrollHeight });

/* What an event changes of a stream. */
const streamTaker = (stream) => {
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

  return (change) => {
    const follows = atBottom();
    if (change.at === undefined) draw(change);
    else goOn(change);
    if (follows) toBottom();
  };
};

/* Rows of a timeline stand where their time is, each once. What belongs to a part that is not on the page is counted,
   and so is what came below the window, until somebody has seen it. */
const timelineTaker = (timeline) => {
  const MOST_ROWS = 5000;
  const news = document.getElementById("news");
  const newest = news.href;
  const loaded = timeline.dataset.place;
  const elsewhere = new Set();
  const below = new Set();
  let asking;

  const isLater = (one, other) => {
    const [[time, number], [otherTime, otherNumber]] = [one.split("/"), other.split("/")];
    return time === otherTime ? BigInt(number) > BigInt(otherNumber) : Number(time) > Number(otherTime);
  };
  const count = () => {
    for (const id of elsewhere) if (document.getElementById(id)) elsewhere.delete(id);
    for (const id of below) {
      if (document.getElementById(id)?.getBoundingClientRect().top < innerHeight) below.delete(id);
    }
    const number = elsewhere.size + below.size;
    news.hidden = !number;
    if (!number) return;
    news.textContent = `${number.toLocaleString("en")} new`;
    news.href = elsewhere.size ? newest : `#${below.values().next().value}`;
  };
  addEventListener("scroll", count, { passive: true });
  document.addEventListener("htmx:afterSettle", count);

  const put = (change, before) => {
    const follows = atBottom();
    const template = document.createElement("template");
    template.innerHTML = change.html;
    const row = template.content.firstElementChild;
    row.classList.add("fresh");
    if (before) before.after(row);
    else timeline.prepend(row);
    if (follows) toBottom();
    if (isLater(change.at, loaded)) below.add(change.row);
  };
  return (change) => {
    if (document.getElementById(change.row)) return "";
    const last = timeline.lastElementChild;
    let before = last;
    while (before && !(before.dataset.at && isLater(change.at, before.dataset.at))) before = before.previousElementSibling;
    if (last?.matches(".more") && before === last.previousElementSibling) {
      if (isLater(change.at, loaded)) elsewhere.add(change.row);
    } else if (before || !timeline.firstElementChild?.matches(".more")) put(change, before);
    count();
    /* What the session adds up to is asked for once in a while, not for each of many rows. */
    asking ??= setTimeout(() => {
      asking = undefined;
      document.body.dispatchEvent(new Event("entries"));
    }, 500);
    return timeline.rows.length > MOST_ROWS ? "This page has become long: reload it." : "";
  };
};

(() => {
  const part = document.querySelector("[data-live]");
  const state = document.getElementById("live-state");
  if (!part) return;
  const taker = part.id === "stream" ? streamTaker(part) : timelineTaker(part);
  let source = null;
  let ended = false;

  const take = (event) => {
    const change = JSON.parse(event.data);
    const words = change === null ? "" : taker(change);
    if (change !== null) document.getElementById("nothing-yet")?.remove();
    part.dataset.place = event.lastEventId;
    if (words) end(words);
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
    const address = new URL(part.dataset.live, location.href);
    address.searchParams.set("after", part.dataset.place);
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
