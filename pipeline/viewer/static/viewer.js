/* Keys, what goes wrong in a part of a page, and charts drawn from the tables beside them. Pages can be read without. */
"use strict";

document.documentElement.classList.add("scripted");

document.addEventListener("htmx:configRequest", (event) => {
  const meta = document.querySelector('meta[name="X-Reknit-Token"]');
  event.detail.headers["X-Reknit-Token"] = meta.content;
});

/* Whether an event is of the header's request. Its element is replaced by then, so that only the address tells. */
const isStatus = (event) => event.detail.requestConfig.path === "/progress?part=header";

(() => {
  const trouble = document.getElementById("trouble");
  const say = (text) => {
    trouble.textContent = text;
    trouble.hidden = !text;
  };
  const SILENT = "The viewer does not answer.";
  document.addEventListener("htmx:sendError", () => say(SILENT));
  document.addEventListener("htmx:responseError", (event) => {
    if (isStatus(event)) return;
    const { status, responseText } = event.detail.xhr;
    const answer = new DOMParser().parseFromString(responseText, "text/html");
    const words = (answer.querySelector("main p") ?? answer.body).textContent.trim();
    say(`${status}: ${words.slice(0, 500)}`);
  });
  /* A part that renews itself waits while somebody is in it, or nobody looks. What the header says must not get old. */
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.target.closest("[hx-trigger^='every']");
    if (!part || event.detail.requestConfig.triggeringEvent) return;
    const isBusy = part.id !== "status" && (part.contains(document.activeElement) || part.querySelector("details[open]"));
    if (document.hidden || isBusy) event.preventDefault();
  });
  document.addEventListener("htmx:afterOnLoad", (event) => {
    if (event.detail.successful && (!isStatus(event) || trouble.textContent === SILENT)) say("");
  });
})();

/* What the header says of the pipeline is true of the moment it came. Without a newer answer, as from a viewer that has
   ended or in a tab that was hidden, it says that nothing is known. */
(() => {
  const OLD = 7000;
  let came = Date.now();
  document.addEventListener("htmx:afterOnLoad", (event) => {
    if (event.detail.successful && isStatus(event)) came = Date.now();
  });
  const look = () => {
    const words = document.getElementById("status-words");
    if (!words || Date.now() - came < OLD) return;
    words.textContent = "not known: no answer from the viewer";
    words.className = "tag warn";
  };
  setInterval(look, 500);
  document.addEventListener("visibilitychange", look);
})();

/* j and k walk through whatever has data-row; Enter opens the row's subject: the link with data-subject, or the
   first one. */
(() => {
  const places = { o: "/", s: "/sessions", l: "/letters", c: "/compare", p: "/playground", e: "/explain" };
  let afterG = false;
  const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent);
  const walk = (step) => {
    const all = rows();
    const at = all.findIndex((row) => row.classList.contains("at"));
    const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
    if (!next) return;
    all[at]?.classList.remove("at");
    next.classList.add("at");
    next.scrollIntoView({ block: "nearest" });
    const first = next.matches("a, summary, button") ? next : next.querySelector("a, summary, button");
    (next.querySelector("[data-subject]") ?? first)?.focus({ preventScroll: true });
  };
  const keys = {
    j: () => walk(1),
    k: () => walk(-1),
    "/": () => {
      const field = document.querySelector('main [data-key="/"]') ?? document.querySelector('[data-key="/"]');
      field?.focus();
      field?.select();
    },
    "?": () => document.getElementById("keys").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) {
      if (event.key === "Escape") event.target.blur?.();
      return;
    }
    const place = afterG && places[event.key];
    afterG = event.key === "g";
    if (place) location.assign(place);
    else if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
})();

/* A table with data-chart has times in its first column and a series in each other one. Its chart is drawn before it,
   bars on top of each other; a click on a bar follows the link of that cell. The table itself folds away. */
(() => {
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (cell) => Number(cell.dataset.value ?? cell.textContent.replaceAll(",", "")) || 0;

  const read = (table) => {
    const names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent.trim());
    const rows = [...table.tBodies[0].rows];
    const times = rows.map((row) => Number(row.cells[0].dataset.value));
    const series = names.map((_, index) => rows.map((row) => number(row.cells[index + 1])));
    const links = (index, at) => rows[at]?.cells[index + 1].querySelector("a")?.href;
    return { names, times, series, links };
  };

  /* The last series stands on all others, so it is drawn first. */
  const stacked = (series) => {
    const heights = series[0]?.map(() => 0) ?? [];
    return series.map((values) => values.map((value, at) => (heights[at] += value)));
  };

  const clock = (_, splits, __, ___, step) =>
    splits.map((seconds) => {
      const [day, time] = new Date(seconds * 1000).toISOString().slice(0, 16).split("T");
      return step >= 86400 || time === "00:00" ? day.slice(5) : time;
    });

  const draw = (place, table) => {
    const { names, times, series, links } = read(table);
    plots.get(place)?.destroy();
    plots.delete(place);
    if (times.length < 2 || !names.length) return;
    const heights = stacked(series);
    const totals = series.map((values) => values.reduce((sum, value) => sum + value, 0));
    const order = names.map((_, index) => names.length - 1 - index);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const step = times[1] - times[0];
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: Number(table.dataset.height ?? 190),
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: {
          x: { range: (_, low, high) => [low - step / 2, high + step / 2] },
          y: { range: (_, low, high) => [0, Math.max(1, high) * 1.06] },
        },
        axes: [{ ...axis, values: clock }, { ...axis, size: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] }],
        series: [
          {
            label: "UTC",
            value: (_, seconds) =>
              seconds === null ? "in all" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " "),
          },
          ...order.map((index) => ({
            label: names[index],
            stroke: colour(`--s${index % 8}`),
            fill: colour(`--s${index % 8}`),
            width: 0,
            points: { show: false },
            paths: uPlot.paths.bars({ size: [0.85, 40] }),
            value: (_, __, ___, at) => (at === null ? totals[index] : series[index][at]).toLocaleString("en"),
          })),
        ],
      },
      [times, ...order.map((index) => heights[index])],
      place,
    );
    /* Series are drawn from the top of a bar down, and listed from its foot up. */
    for (const row of [...plot.root.querySelectorAll(".u-series")].slice(1).reverse()) row.parentNode.append(row);
    plot.over.addEventListener("click", () => {
      const { idx, top } = plot.cursor;
      if (idx == null) return;
      const height = plot.posToVal(top, "y");
      const index = heights.findIndex((values) => values[idx] >= height);
      const link = index >= 0 && links(index, idx);
      if (link) location.assign(link);
    });
    plot.over.classList.add("clicks");
    plots.set(place, plot);
  };

  const all = (root) => {
    for (const place of plots.keys()) {
      if (place.isConnected) continue;
      plots.get(place).destroy();
      plots.delete(place);
    }
    for (const table of root.querySelectorAll("table[data-chart]")) {
      const place = document.getElementById(table.dataset.chart);
      if (place) draw(place, table);
    }
  };
  const again = () => all(document);
  addEventListener("DOMContentLoaded", again);
  document.addEventListener("htmx:afterSettle", (event) => event.target.querySelector("table[data-chart]") && again());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(again, 150);
  });
})();

/* A file that is dropped on a field with data-drop, or chosen in the same form, becomes the field's text. */
(() => {
  const put = async (field, file) => {
    const trouble = document.getElementById("trouble");
    const most = Number(field.dataset.drop);
    trouble.hidden = file.size <= most;
    trouble.textContent = trouble.hidden ? "" : `${file.name} has ${file.size.toLocaleString("en")} bytes; ${most.toLocaleString("en")} are the most.`;
    if (!trouble.hidden) return;
    field.value = await file.text();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const over = (event) => event.target.closest?.("[data-drop]");
  document.addEventListener("dragover", (event) => over(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    const file = over(event) && event.dataTransfer.files[0];
    if (!file) return;
    event.preventDefault();
    put(over(event), file);
  });
  document.addEventListener(
    "change",
    (event) => {
      const field = event.target.type === "file" && event.target.form?.querySelector("[data-drop]");
      if (!field || !event.target.files[0]) return;
      // The form would send the file beside the text.
      event.stopPropagation();
      put(field, event.target.files[0]);
      event.target.value = "";
    },
    true,
  );
})();
