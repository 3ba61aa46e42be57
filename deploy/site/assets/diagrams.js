// Diagrams in their own size: shrunk to the width of the text, the words of a large one cannot be read.
if (typeof mermaid !== "undefined") {
  const initialize = mermaid.initialize;
  mermaid.initialize = (config) =>
    initialize({ ...config, flowchart: { useMaxWidth: false }, state: { useMaxWidth: false } });
}

