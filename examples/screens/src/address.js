// The session of a page is in its fragment, which browsers send to no server: #server=URL&session=ID&token=TOKEN
const given = new URLSearchParams(location.hash.slice(1));

export const session = {
  server: (given.get("server") ?? "http://127.0.0.1:8770").replace(/\/+$/, ""),
  id: given.get("session") ?? "",
  headers: given.has("token") ? { Authorization: `Bearer ${given.get("token")}` } : {},
};

export const addressOf = ({ server, id }) => `${server}/sessions/${encodeURIComponent(id)}`;
