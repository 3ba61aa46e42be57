// A filter above each long table and each long list of sections: rows or sections without the words are hidden.
(() => {
  "use strict";
  const LONG = 12;
  const MANY = 20;

  const field = (label, before, entries) => {
    const input = document.createElement("input");
    input.type = "search";
    input.className = "filter";
    input.placeholder = label;
    input.setAttribute("aria-label", label);
    const shown = document.createElement("p");
    shown.className = "filter-count";
    shown.setAttribute("role", "status");
    before.before(input, shown);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const { text, elements } of entries) {
        const fits = words.every((word) => text.includes(word));
        left += fits;
        for (const element of elements) element.hidden = !fits;
      }
      shown.textContent = words.length ? `${left} of ${entries.length}` : "";
    });
  };

  const lower = (elements) => elements.map((element) => element.textContent).join(" ").toLowerCase();

  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length >= LONG) {
      field("Filter these rows", table.closest(".md-typeset__scrollwrap") ?? table,
        rows.map((row) => ({ text: lower([row]), elements: [row] })));
    }
  }

  // Sections of a page of codes: a heading, and what follows up to the next one.
  const article = document.querySelector("article");
  const headings = [...(article?.querySelectorAll(":scope > h2, :scope > h3") ?? [])];
  if (headings.length >= MANY) {
    const entries = headings.map((heading) => {
      const elements = [heading];
      for (let next = heading.nextElementSibling; next && !/^H[23]$/.test(next.tagName); next = next.nextElementSibling) {
        elements.push(next);
      }
      return { text: lower(elements), elements };
    });
    field("Filter these sections", headings[0], entries);
  }
})();
