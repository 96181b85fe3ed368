// The pages that these files have, of both servers: the key that opens each, and how it is loaded. The server says which of
// them it serves. Only pages that no server has together may share a key.

const PAGES = {
  overview: { title: "Overview", keys: "g o", load: () => import("./pages/overview.js") },
  topics: { title: "Topics", keys: "g t", load: () => import("./pages/topics.js") },
  tail: { title: "Tail", keys: "g l", load: () => import("./pages/tail.js") },
  clients: { title: "Clients", keys: "g c", load: () => import("./pages/clients.js") },
  groups: { title: "Groups", keys: "g g", load: () => import("./pages/groups.js") },
  log: { title: "Log", keys: "g s", load: () => import("./pages/log.js") },
  damage: { title: "Damage", keys: "g d", load: () => import("./pages/damage.js") },
  access: { title: "Access", keys: "g a", load: () => import("./pages/access.js") },
  trace: { title: "Trace", keys: "g r", load: () => import("./pages/trace.js") },
  brokers: { title: "Brokers", keys: "g b", load: () => import("./pages/brokers.js") },
  rollouts: { title: "Rollouts", keys: "g o", load: () => import("./pages/rollouts.js") },
  devices: { title: "Devices", keys: "g d", load: () => import("./pages/devices.js") },
  quality: { title: "Quality", keys: "g q", load: () => import("./pages/quality.js") },
};

/** Those that the server has, each with its name, in the order of the server. */
export function pagesOf(info) {
  return info.pages.filter((name) => Object.hasOwn(PAGES, name)).map((name) => ({ name, ...PAGES[name] }));
}
