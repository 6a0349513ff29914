// The rows of the run, and the connection that keeps them as they are. A row has a key: told twice, it is there once.

const path = location.pathname.match(/^\/runs\/[A-Za-z0-9._-]+/);
export const base = path ? path[0] : "";
export const rows = new Map();
export const link = { state: "asking", heardAt: 0, ahead: 0 };
const listeners = new Set();
let version = "", source = null, drawn = false;

export const onChange = (listener) => listeners.add(listener);
export const ofKind = (kind) => [...rows].filter(([key]) => key.startsWith(kind + ":")).map(([, row]) => row);
export const now = () => Date.now() / 1000 + link.ahead;

export function changed() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    for (const listener of listeners) listener();
  });
}

export async function ask(below) {
  const answer = await fetch(base + below, { headers: { Accept: "application/json" } });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || `status ${answer.status}`);
  return told;
}

function take(patch) {
  if (patch.reset) rows.clear();
  for (const [key, row] of Object.entries(patch.rows)) row === null ? rows.delete(key) : rows.set(key, row);
  version = patch.version;
  link.state = "live";
  link.heardAt = Date.now();
  const head = rows.get("head");
  if (head && patch.rows.head && !head.is_over && !head.is_gone) link.ahead = head.as_of - Date.now() / 1000;
  changed();
}

function listen() {
  source = new EventSource(`${base}/api/events?since=${encodeURIComponent(version)}`);
  source.onopen = () => { link.state = "live"; changed(); };
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    link.state = "lost";
    changed();
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 4000);
  };
}

export async function begin() {
  try {
    take(await ask("/api/overview"));
    listen();
  } catch (error) {
    link.state = "lost";
    link.why = error.message;
    changed();
    setTimeout(begin, 4000);
  }
}
