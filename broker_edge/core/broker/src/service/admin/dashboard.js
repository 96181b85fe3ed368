"use strict";
const EVERY_MS = 2000;
let before = null;

const size = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
};
const count = (n) => n.toLocaleString("en", { maximumFractionDigits: 1 });

// Names and ids come from clients: they are only ever put in as text.
function fill(table, names, rows) {
  table.replaceChildren();
  for (const [cells, kind] of [[names, "th"], ...rows.map((row) => [row, "td"])]) {
    const line = table.insertRow();
    for (const cell of cells) {
      const field = document.createElement(kind);
      field.textContent = cell ?? "–";
      line.append(field);
    }
  }
}

function card(name, value) {
  const box = document.createElement("div");
  box.className = "card";
  const number = document.createElement("b");
  number.textContent = value;
  box.append(number, name);
  return box;
}

function metric(text, name) {
  let sum = 0;
  for (const line of text.split("\n")) {
    if (line.startsWith(name + " ") || line.startsWith(name + "{")) sum += Number(line.split(" ").at(-1));
  }
  return sum;
}

async function look() {
  const [status, page, text] = await Promise.all([
    fetch("api/v1/status").then((r) => r.json()),
    fetch("api/v1/clients?connected=true&limit=50").then((r) => r.json()),
    fetch("metrics").then((r) => r.text()),
  ]);
  const now = {
    at: performance.now(),
    received: metric(text, "headwater_mqtt_publishes_received_total"),
    sent: metric(text, "headwater_mqtt_deliveries_total"),
    busy: metric(text, "headwater_loop_turn_seconds_sum"),
  };
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const rate = (name) => (seconds ? (now[name] - before[name]) / seconds : 0);
  document.getElementById("version").textContent = status.version + " · log " + status.log_id;
  document.getElementById("cards").replaceChildren(
    card("connections", count(status.connections)),
    card("sessions", count(status.sessions)),
    card("messages in /s", count(rate("received"))),
    card("messages out /s", count(rate("sent"))),
    card("loop busy", count(100 * rate("busy")) + " %"),
    card("disk, " + status.disk.level, size(status.disk.used_bytes)),
  );
  before = now;
  fill(document.getElementById("partitions"), ["partition", "state", "log start", "high watermark", "size", "gaps"],
    status.partitions.map((p) => [p.name, p.reason ?? p.state, count(p.log_start), count(p.high_watermark), size(p.bytes), p.gaps.length]));
  document.getElementById("shown").textContent = page.next === null ? "" : "the first " + page.clients.length;
  fill(document.getElementById("clients"), ["client", "user", "address", "version", "subscriptions", "in /s", "out /s", "in flight", "lag"],
    page.clients.map((c) => [c.client_id, c.user, c.address, c.version, c.subscriptions, count(c.per_second.received_messages),
      count(c.per_second.sent_messages), c.inflight_out, count(c.lag_records)]));
}

async function turn() {
  try {
    await look();
    document.getElementById("state").textContent = "";
  } catch (error) {
    document.getElementById("state").textContent = "the broker does not answer: " + error.message;
  }
  setTimeout(turn, EVERY_MS);
}
turn();
