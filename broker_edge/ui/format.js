// How numbers, sizes, times and durations are written. Null and NaN are a dash: not known.

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const twoDigits = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isKnown(value) ? whole.format(value) : UNKNOWN;
}

/** About three digits: 1,234 or 12.3 or 0.12. */
export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 100) return whole.format(value);
  return (size >= 10 ? oneDigit : twoDigits).format(value);
}

export function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

export function bytesPerSecond(value) {
  return isKnown(value) ? `${scaled(value, 1000, ["B", "kB", "MB", "GB"])}/s` : UNKNOWN;
}

export function percent(share) {
  return isKnown(share) ? `${rate(share * 100)} %` : UNKNOWN;
}

/** A latency, from microseconds to seconds. */
export function latency(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 0.001) return `${rate(seconds * 1e6)} µs`;
  if (seconds < 1) return `${rate(seconds * 1e3)} ms`;
  return `${rate(seconds)} s`;
}

/** A length of time in its two largest units: "3 h 20 m". */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  if (total < 3600) return two(Math.floor(total / 60), "m", total % 60, "s");
  if (total < 86_400) return two(Math.floor(total / 3600), "h", Math.floor((total % 3600) / 60), "m");
  if (total > 365 * 86_400) return "more than a year";
  return two(Math.floor(total / 86_400), "d", Math.floor((total % 86_400) / 3600), "h");
}

/** "1 record", "2 records". */
export function counted(number, one) {
  return `${count(number)} ${number === 1 ? one : `${one}s`}`;
}

/** The time of day here, with the date unless it is today. */
export function time(milliseconds) {
  if (!isKnown(milliseconds)) return UNKNOWN;
  const at = new Date(milliseconds);
  if (Number.isNaN(at.getTime())) return UNKNOWN;
  const isToday = day.format(at) === day.format(new Date());
  return isToday ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

/** The time of day here, to the minute. */
export function clockTime(milliseconds) {
  return clock.format(milliseconds).slice(0, 5);
}

export function isoTime(milliseconds) {
  const at = new Date(milliseconds);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** At most `length` characters of a text, with a mark when some are missing. Half a surrogate pair is left out. */
export function cut(text, length) {
  if (text.length <= length) return text;
  return `${text.slice(0, length).replace(/[\ud800-\udbff]$/, "")}…`;
}

function two(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

function scaled(value, base, units) {
  if (!isKnown(value)) return UNKNOWN;
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= base && unit < units.length - 1) {
    size /= base;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(size) : rate(size)} ${units[unit]}`;
}
