// How far each consumer group is behind in each partition, when it will have caught up, and when it will lose data. What
// loses data soonest comes first.

import { html, useRef } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { Command, serverOption } from "../command.js";
import { count, duration, rate } from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { Facts, Panel, PanelLink } from "../panel.js";
import { ANSWER_ROWS_MAX, usePages, usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { Time, Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const PATH = "api/v1/groups";
const EVERY_MS = 2_000;
// Groups commit in steps of some seconds; a shorter window would show each step as a trend.
const WINDOW_MS = 60_000;
const TREND_AFTER_S = 8;
const YEAR_S = 365 * 86_400;
// Longer than any time until a loss.
const NEVER_S = 1e12;
const SOONEST_LOSS = "loss";

export default function Groups({ query }) {
  const contains = query.contains ?? "";
  const groups = usePages(PATH, { contains }, "groups", EVERY_MS);
  const trends = useTrends(groups);
  const rows = (groups.rows ?? []).flatMap((group) => rowsOf(group, trends));
  return html`
    <${Search} label="Part of the group" name="contains" value=${contains} />
    <${Trouble} ...${groups} />
    <p class="note">Times until a loss assume that partition and group go on as in the last minutes. A group that has been seen for less than a minute is taken to stand still.</p>
    ${query.group !== undefined && html`<${Detail} key=${query.group} name=${query.group} trends=${trends} />`}
    <div class=${groups.isStale ? "stale" : null}>
      ${groups.rows && html`
        <${Table} caption="Consumer groups by partition" columns=${COLUMNS} rows=${rows} keyOf=${(row) => row.key} current=${query.row}
          sort=${query.sort ?? SOONEST_LOSS} onSort=${(sort) => change({ sort })}
          empty=${contains ? "No group has this in its name." : "There are no consumer groups."} />
        <${More} what="group" ...${groups} />
      `}
    </div>
    ${!groups.rows && !groups.error && html`<${Waiting} what="the groups" />`}
    <${Command} parts=${commandParts(query.group)} />
  `;
}

function commandParts(group) {
  return ["headwater groups list", ...serverOption(), ...(group === undefined ? [] : ["--", { text: group }])];
}

const OF_PLACE = [
  { key: "partition", title: "partition", value: (row) => row.name, cell: (row) => html`<span class="nowrap">${row.name}</span>` },
  { key: SOONEST_LOSS, title: "data loss", value: lossOrder, cell: (row) => html`<${Loss} row=${row} />` },
  { key: "lost", title: "lost records", isNumber: true, value: (row) => row.lost_records,
    cell: (row) => (row.lost_records > 0 ? html`<span class="bad">✖\u00a0${count(row.lost_records)}</span>` : "0") },
  { key: "lag", title: "lag (records)", word: "lag", isNumber: true, value: (row) => row.lag_records, cell: (row) => count(row.lag_records) },
  { key: "age", title: "lag (time)", isNumber: true, value: (row) => row.lag_s, cell: (row) => (row.lag_records === 0 ? "none" : duration(row.lag_s)) },
  { key: "trend", title: "trend", value: (row) => row.trend?.growth ?? null, cell: (row) => trendText(row) },
  { key: "clear", title: "caught up in", value: (row) => row.clearS, cell: (row) => clearText(row) },
];

const COLUMNS = [
  { key: "group", title: "group", isHeader: true, value: (row) => row.group,
    cell: (row) => html`<${PanelLink} kind="group" name=${row.group} row=${row.key} />${row.is_idle && html` <span class="note">idle</span>`}` },
  ...OF_PLACE,
  { key: "next", title: "next offset", isNumber: true, value: (row) => row.next, cell: (row) => count(row.next) },
  { key: "owner", title: "owner", value: (row) => row.owner, cell: (row) => html`<${Name} text=${row.owner} length=${60} />` },
  { key: "touched", title: "last seen", value: (row) => row.touched_us, cell: (row) => html`<${Time} ms=${row.touched_us && row.touched_us / 1_000} />` },
];

const PLACE_COLUMNS = [
  { ...OF_PLACE[0], isHeader: true, cell: ({ name }) => html`<a data-open href=${link("log", { partition: name })}>${name}<span class="hidden">: its segments</span></a>` },
  ...OF_PLACE.slice(1),
  { key: "start", title: "log start", word: "logStart", isNumber: true, cell: (row) => count(row.log_start) },
  { key: "next", title: "next offset", isNumber: true, cell: (row) => html`<${Next} row=${row} />` },
  { key: "end", title: "high watermark", word: "highWatermark", isNumber: true, cell: (row) => count(row.high_watermark) },
];

function Next({ row: { name, next, lag_records: lag } }) {
  if (lag === 0) return count(next);
  return html`<a href=${link("tail", { from: "offset", at: next, partition: name })}>${count(next)}<span class="hidden">: what it reads next in ${name}</span></a>`;
}

/** Asks for itself: the list may have been searched for others. */
function Detail({ name, trends }) {
  const query = { contains: name, limit: ANSWER_ROWS_MAX };
  const answer = usePoll(`group ${name}`, EVERY_MS, (signal) => ask(PATH, { query, signal }));
  const group = answer.value?.groups.find((one) => one.group === name);
  return html`
    <${Panel} kind="group" name=${name} isStale=${answer.isStale}>
      <${Trouble} ...${answer} />
      ${group && html`<${Group} group=${group} trends=${trends} />`}
      ${answer.value && !group && html`<p class="note">There is no group with this name now.</p>`}
      ${!answer.value && !answer.error && html`<${Waiting} what="the group" />`}
    <//>
  `;
}

function Group({ group, trends }) {
  const facts = [
    ["State", group.is_idle ? "idle: retention does not wait for it" : "in use"],
    ["Owner", html`<${Name} text=${group.owner} length=${400} />`],
    ["Last seen", html`<${Time} ms=${group.touched_us && group.touched_us / 1_000} />`],
  ];
  return html`
    <${Facts} facts=${facts} />
    <${Table} caption="Places of the group" columns=${PLACE_COLUMNS} rows=${rowsOf(group, trends)} keyOf=${(row) => `place ${row.name}`} current=${null} empty="It has no places." />
  `;
}

function rowsOf(group, trends) {
  return group.partitions.map((partition) => {
    const key = `${group.group} ${partition.name}`;
    const trend = trends.get(key) ?? null;
    const clearS = partition.lag_records === 0 || trend?.keepsUp ? 0 : trend && trend.growth < 0 ? partition.lag_records / -trend.growth : null;
    return { ...group, ...partition, key, trend, clearS };
  });
}

/** Seconds until data is lost. Behind all of those come groups that have lost some, and then those that are behind. */
function lossOrder({ loss_s: lossS, lost_records: lost, lag_s: lagS }) {
  if (lossS !== null) return lossS;
  return lost > 0 ? NEVER_S : 2 * NEVER_S - (lagS ?? 0);
}

function Loss({ row }) {
  if (row.loss_s === null || row.loss_s > YEAR_S) return html`<span class="good">loses nothing${row.loss_s !== null && " for over a year"}</span>`;
  const isSoon = row.loss_s < 86_400;
  return html`<span class=${isSoon ? "bad" : null}>${isSoon ? "⚠\u00a0" : ""}loses data in ${duration(row.loss_s)}</span>`;
}

function trendText({ trend, lag_records: lag }) {
  if (trend?.keepsUp) return "→\u00a0keeps up";
  if (lag === 0 && !trend?.growth) return "at the end";
  if (!trend) return "–";
  if (Math.abs(trend.growth) < 0.05) return "→\u00a0steady";
  return trend.growth > 0 ? `↑\u00a0grows by ${rate(trend.growth)}/s` : `↓\u00a0shrinks by ${rate(-trend.growth)}/s`;
}

function clearText({ lag_records: lag, trend, clearS }) {
  if (lag === 0 || trend?.keepsUp) return "now";
  if (!trend) return "–";
  return clearS === null ? "not at this rate" : duration(clearS);
}

/**
 * Of each lag over the last minute of answers: its growth in records a second, what is appended less what is committed; and
 * whether it is only what has come since the group's last commits.
 */
function useTrends({ rows, atMs }) {
  const looks = useRef([]);
  const last = looks.current.at(-1);
  if (rows && atMs && atMs !== last?.atMs) {
    const offsets = new Map(rows.flatMap((group) => group.partitions.map((partition) => [`${group.group} ${partition.name}`, partition])));
    looks.current = [...looks.current, { atMs, offsets }].filter((look) => atMs - look.atMs <= WINDOW_MS);
  }
  return trendsOf(looks.current);
}

function trendsOf(looks) {
  const last = looks.at(-1);
  const trends = new Map();
  for (const [key, now] of last?.offsets ?? []) {
    // Another search may have left it out before.
    const first = looks.find(({ offsets }) => offsets.has(key));
    const before = first.offsets.get(key);
    const seconds = (last.atMs - first.atMs) / 1_000;
    // A group that was set back starts anew.
    if (seconds < TREND_AFTER_S || now.next < before.next) continue;
    const appended = (now.high_watermark - before.high_watermark) / seconds;
    const committed = (now.next - before.next) / seconds;
    const keepsUp = appended > 0 && now.next >= endBeforeLastCommits(looks.map(({ offsets }) => offsets.get(key)));
    trends.set(key, { growth: keepsUp ? 0 : appended - committed, keepsUp });
  }
  return trends;
}

/** The high watermark as it was before the last commit but one: what a group that keeps up has read with the last one. */
function endBeforeLastCommits(places) {
  const known = places.filter(Boolean);
  const commits = known.flatMap(({ next }, look) => (look > 0 && next !== known[look - 1].next ? [look] : []));
  return commits.length === 0 ? Infinity : known[(commits.at(-2) ?? 1) - 1].high_watermark;
}
