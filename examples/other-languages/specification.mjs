/*
 * The rules of docs/specification.md, written in JavaScript and held to its test vectors:
 *
 *     node specification.mjs ../../docs/specification-vectors.json
 *
 * It prints how many vectors of each kind agree, and those that do not. For reading, and to begin from.
 */

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

const MAX_TIME_MS = 253402300799999;
const MIN_DUE_MS = 253402300800;
const ENTERED_SLACK_MS = 300_000;
const MAX_CHARS = 256;
const MAX_SUBSCRIPTION_CHARS = 1024;
const MAX_SHORT_GENERATION = 999_999_999;
const LINE = /^1 (\d{1,15}) (\d{1,9}) (\d{1,6}) (\d{1,15}) (\d{1,10})$/;
const LONG_LINE = /^2 (\d{1,15}) (\d{1,16}) (\d{1,6}) (\d{1,15}) (\d{1,10}) (\d{1,6}) (\d{1,15})$/;

const characters = (text) => [...text].length;

class Refused extends Error {}

/** The timer that a message is; undefined: it is none; null: a later version wrote it. */
export function readEnvelope(properties) {
  const { "tw-id": id, "tw-timer": line } = properties;
  if (id === undefined && line === undefined) return undefined;
  if (!id || line === undefined) throw new Refused("one of tw-id, tw-timer is missing or empty");
  if (characters(id) > MAX_CHARS) throw new Refused("tw-id is too long");
  const match = LINE.exec(line) ?? LONG_LINE.exec(line);
  if (match === null) {
    const version = /^(\d{1,9})( |$)/.exec(line);
    if (version !== null && Number(version[1]) > 2) return null;
    throw new Refused("tw-timer is garbled");
  }
  const [due_ms, generation, hops, entered_ms, revision, attempt = 0, first_due_ms = 0] = match.slice(1).map(Number);
  if (Math.max(due_ms, entered_ms, first_due_ms) > MAX_TIME_MS) throw new Refused("beyond the year 9999");
  const timer = { id, due_ms, generation, hops, entered_ms, revision };
  return line.startsWith("1") ? timer : { ...timer, ...lifeOf(properties, attempt, first_due_ms) };
}

function lifeOf({ "tw-group": group, "tw-for": only }, attempt, first_due_ms) {
  const life = first_due_ms ? { attempt, first_due_ms } : {};
  if (group !== undefined) {
    const match = /^(\d{1,16}) (.+)$/s.exec(group);
    if (match === null) throw new Refused("tw-group is garbled");
    if (characters(match[2]) > MAX_CHARS) throw new Refused("tw-group is too long");
    life.group = match[2];
    life.group_stamp = Number(match[1]);
  }
  if (only !== undefined && characters(only) > MAX_SUBSCRIPTION_CHARS) throw new Refused("tw-for is too long");
  return only ? { ...life, for: only } : life;
}

/** The properties of a timer. */
export function writeEnvelope(timer) {
  const { id, due_ms, generation, hops, entered_ms, revision, attempt = 0, first_due_ms = 0 } = timer;
  const numbers = `${due_ms} ${generation} ${hops} ${entered_ms} ${revision}`;
  const properties = { "tw-id": id };
  const saysMore = attempt || first_due_ms || timer.group || timer.for || generation > MAX_SHORT_GENERATION;
  properties["tw-timer"] = saysMore ? `2 ${numbers} ${attempt} ${first_due_ms}` : `1 ${numbers}`;
  if (timer.group) properties["tw-group"] = `${timer.group_stamp} ${timer.group}`;
  if (timer.for) properties["tw-for"] = timer.for;
  return properties;
}

/** The properties with which a message leaves the intake. */
export function takenIn(given, { publish_ms, place, revision, max_delay_ms }) {
  const { "tw-due": due, "tw-from": _, ...properties } = given;
  if (properties["tw-timer"] !== undefined) {
    const timer = readEnvelope(properties);
    if (timer === null) throw new Refused("of a later version");
    if (timer.due_ms - publish_ms > max_delay_ms) throw new Refused("beyond max_delay");
    const entered_ms = Math.abs(timer.entered_ms - publish_ms) > ENTERED_SLACK_MS ? publish_ms : timer.entered_ms;
    return entered_ms === timer.entered_ms ? properties : { ...properties, ...writeEnvelope({ ...timer, entered_ms }) };
  }
  if (due === undefined) throw new Refused("no due time");
  if (!/^\d{1,15}$/.test(due)) throw new Refused("tw-due is garbled");
  const due_ms = Number(due);
  if (due_ms < MIN_DUE_MS) throw new Refused("before 1978: seconds?");
  if (due_ms > MAX_TIME_MS) throw new Refused("beyond the year 9999");
  if (due_ms - publish_ms > max_delay_ms) throw new Refused("beyond max_delay");
  const id = properties["tw-id"] || [...place].slice(-MAX_CHARS).join("");
  if (characters(id) > MAX_CHARS) throw new Refused("tw-id is too long");
  if ("tw-group" in properties || "tw-for" in properties) throw new Refused("tw-due has no groups");
  const timer = { id, due_ms, generation: 0, hops: 0, entered_ms: publish_ms, revision };
  return { ...properties, ...writeEnvelope(timer) };
}

/** Java's `String.hashCode()` with the sign bit cleared. */
export function hashOf(key) {
  let hash = 0;
  for (let at = 0; at < key.length; at++) hash = (Math.imul(31, hash) + key.charCodeAt(at)) | 0;
  return hash & 0x7fffffff;
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000], ["ms", 1]];
const UNIT_MS = Object.fromEntries(UNITS);

function durationMs(text) {
  const [, count, unit] = /^(\d+)([a-z]+)$/.exec(text);
  return Number(count) * UNIT_MS[unit];
}

function duration(ms) {
  const [unit, unitMs] = UNITS.find(([, unitMs]) => ms % unitMs === 0);
  return `${ms / unitMs}${unit}`;
}

function prefixOf({ due_topic: topic, holding_namespace: namespace }) {
  const [domain, rest] = topic.split("://");
  const at = rest.lastIndexOf("/");
  const own = rest.slice(0, at);
  if (namespace === undefined || namespace === own) return `${topic}.tw`;
  return `${domain}://${namespace}/${rest.replaceAll("/", "~")}.tw`;
}

function intervalTopic(plan, lengthMs, interval) {
  const start = new Date(interval * lengthMs).toISOString(); // 2026-11-21T15:30:07.500Z
  const day = start.slice(0, 10).replaceAll("-", "");
  const [hour, minute, second, ms] = [start.slice(11, 13), start.slice(14, 16), start.slice(17, 19), start.slice(20, 23)];
  let label = day;
  if (lengthMs % UNIT_MS.d) label += `T${hour}${minute}`;
  if (lengthMs % UNIT_MS.m) label += second;
  if (lengthMs % UNIT_MS.s) label += `.${ms}`;
  return `${plan.due_topic}.tw.${duration(lengthMs)}-${label}${lengthMs % UNIT_MS.d ? "Z" : ""}`;
}

/** Where a timer goes at a time: the topic, when the broker is asked to deliver it, and when it leaves a holding topic. */
export function route(plan, due, at) {
  const prefix = prefixOf(plan);
  const guard = durationMs(plan.guard);
  const { tiered, wheel, calendar } = plan;
  const byBroker = tiered?.hold === "broker";
  for (const stay of (tiered?.tiers ?? []).map(durationMs).reverse()) {
    if (due - at >= Math.max(stay + guard, durationMs(tiered.window) + 1)) {
      const release_at_ms = at + stay;
      const topic = `${prefix}.${byBroker ? "delay" : "tier"}-${duration(stay)}`;
      return { topic, deliver_at_ms: byBroker ? release_at_ms : 0, release_at_ms };
    }
  }
  for (const ring of [...(wheel?.rings ?? [])].reverse()) {
    const length = durationMs(ring.slot);
    const number = Math.floor(due / length);
    const release_at_ms = number * length - (ring.headstart === undefined ? guard : durationMs(ring.headstart));
    if (release_at_ms > at) {
      const slot = String(number % ring.slots).padStart(3, "0");
      return { topic: `${prefix}.ring-${duration(length)}-${ring.slots}.${slot}`, deliver_at_ms: 0, release_at_ms };
    }
  }
  const lead = plan.readers === "any" ? 0 : Math.floor((durationMs(plan.tick) * 3) / 2);
  const deliver_at_ms = due - lead > at ? due - lead : 0;
  if (calendar === undefined) return { topic: plan.due_topic, deliver_at_ms };
  const length = durationMs(calendar.interval);
  return { topic: intervalTopic(plan, length, Math.floor(Math.max(due, at) / length)), deliver_at_ms };
}

function wayOf(plan, due, sent) {
  const way = [];
  for (let at = sent; at !== undefined; at = way.at(-1).release_at_ms) way.push(route(plan, due, at));
  return way;
}

function verdictOf(properties) {
  const timer = readEnvelope(properties);
  if (timer === null) return { later_version: true };
  return timer === undefined ? { no_timer: true } : { timer };
}

function check(vectors) {
  const failed = [];
  const counts = {};
  const expect = (kind, vector, wanted, find) => {
    counts[kind] = (counts[kind] ?? 0) + 1;
    let found;
    try {
      found = find();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      found = "refused";
    }
    if (!isDeepStrictEqual(found, wanted)) failed.push({ kind, vector, found });
  };
  for (const vector of vectors.envelopes_read) {
    const { properties, refused, ...verdict } = vector;
    expect("envelopes_read", vector, refused ? "refused" : verdict, () => verdictOf(properties));
  }
  for (const vector of vectors.envelopes_written) {
    expect("envelopes_written", vector, vector.properties, () => writeEnvelope(vector.timer));
  }
  for (const vector of vectors.intake.messages) {
    expect("intake", vector, vector.goes_on ?? "refused", () => takenIn(vector.properties, vectors.intake));
  }
  for (const vector of vectors.keys) {
    const partitions = Object.keys(vector.partition_of);
    expect("keys", vector, { hash: vector.hash, partition_of: vector.partition_of }, () => {
      const hash = hashOf(vector.key);
      return { hash, partition_of: Object.fromEntries(partitions.map((count) => [count, hash % count])) };
    });
  }
  for (const { plan, ways } of Object.values(vectors.plans)) {
    for (const vector of ways) expect("ways", vector, vector.way, () => wayOf(plan, vector.due_ms, vector.sent_ms));
  }
  return { ...counts, failed };
}

console.log(JSON.stringify(check(JSON.parse(readFileSync(process.argv[2], "utf8")))));
