"use strict";
// The page: reads /admin/fleet, /admin/requests and /readyz, and draws them. All of it is text, never markup.

const EVERY_MS = 2000;
const $ = (id) => document.getElementById(id);
let shownId = "";

class NeedsKey extends Error {}

async function read(path) {
  const key = sessionStorage.getItem("admin-key");
  const answer = await fetch(path, { headers: key ? { authorization: `Bearer ${key}` } : {}, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new NeedsKey("The admin key is needed to see this; type it above.");
  if (!answer.ok && answer.status !== 503) {
    const said = await answer.json().catch(() => null);
    throw new Error(said?.error?.message ?? `${path} answered ${answer.status}.`);
  }
  return answer.json();
}

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

// State.

function drawState(state, fleet) {
  const chip = (text, kind) => make("li", { class: `chip ${kind}` }, text);
  const chips = [chip(state.ready ? "ready" : "not ready", state.ready ? "good" : "bad")];
  if (state.draining) chips.push(chip("draining", "warn"));
  if (state.degraded || fleet?.degraded) chips.push(chip("store away: last known fleet", "warn"));
  if (fleet && fleet.age_s > 5) chips.push(chip(`fleet seen ${duration(fleet.age_s)} ago`, "warn"));
  $("state").replaceChildren(...chips);
}

// Fleet.

function meter(name, value, most) {
  const share = most > 0 ? Math.min(value / most, 1) : 0;
  const bar = make("progress", { max: "1", value: String(share), "aria-label": name });
  return make("div", { class: "meter" }, make("span", {}, name), bar, make("b", {}, value));
}

function card(one, members, most) {
  const health = one.health ?? "closed";
  const kind = one.draining ? "warn" : health === "closed" ? "good" : "bad";
  const said = one.draining ? "draining" : health === "closed" ? "well" : health;
  const load = one.load;
  const fedBy = members.filter((other) => (other.feeds ?? []).includes(one.instance_id)).map((other) => other.instance_id);
  const paired = [["feeds", one.feeds ?? []], ["fed by", fedBy]].filter(([, names]) => names.length)
    .map(([verb, names]) => `${verb} ${names.join(", ")}`).join("; ");
  return make("article", { class: `card ${one.role}`, "data-instance": one.instance_id },
    make("h4", {}, one.instance_id, make("span", { class: `chip ${kind}` }, said)),
    make("p", { class: "quiet" }, `${one.role} · start ${one.epoch} · ${one.url}`),
    make("p", {}, paired || "paired with nobody"),
    meter("legs of this router", one.on_its_way, most.on_its_way),
    meter("running", load.running_seqs, most.running_seqs),
    meter("waiting", load.waiting_seqs, most.waiting_seqs),
    meter("queued prompt tokens", load.queued_prompt_tokens, most.queued_prompt_tokens),
    meter("blocks held", load.held_blocks, load.held_blocks + load.free_blocks),
    meter("blocks in quarantine", load.quarantined_blocks, load.held_blocks + load.free_blocks));
}

function mostOf(instances) {
  const most = (value) => Math.max(1, ...instances.map(value));
  return {
    on_its_way: most((one) => one.on_its_way),
    running_seqs: most((one) => one.load.running_seqs),
    waiting_seqs: most((one) => one.load.waiting_seqs),
    queued_prompt_tokens: most((one) => one.load.queued_prompt_tokens),
  };
}

function drawFleet(fleet) {
  const instances = fleet.instances, most = mostOf(instances);
  $("fleet-empty").hidden = instances.length > 0;
  const models = [...new Set(instances.map((one) => one.model))].sort();
  $("fleet").replaceChildren(...models.map((model) => {
    const members = instances.filter((one) => one.model === model);
    const column = (title, role) => {
      const cards = members.filter((one) => one.role === role).map((one) => card(one, members, most));
      return cards.length ? [make("div", { class: "column" }, make("h4", { class: "quiet" }, title), ...cards)] : [];
    };
    return make("div", { class: "model" }, make("h3", {}, model), make("div", { class: "columns" },
      ...column("Prefill", "prefill"), ...column("Decode", "decode"), ...column("Both", "both")));
  }));
}

// Requests.

function perToken(record) {
  const tokens = record.completion_tokens || record.num_events;
  return record.stream && record.content_s && tokens > 1
    ? duration((record.last_byte_s - record.content_s) / (tokens - 1)) : "–";
}

function outcome(record) {
  const kind = { served: "good", refused: "warn", abandoned: "warn" }[record.outcome] ?? "bad";
  return make("span", { class: `chip ${kind}` }, record.code ? `${record.outcome}: ${record.code}` : record.outcome);
}

function row(record) {
  const number = (text) => make("td", { class: "number" }, text);
  const link = make("a", { href: `#${encodeURIComponent(record.request_id)}` }, record.client_id || record.request_id);
  const first = record.content_s || record.first_byte_s;
  const pair = [record.prefill, record.decode].filter(Boolean).join(" → ") || "–";
  return make("tr", {},
    make("td", {}, new Date((record.at + record.ended_s) * 1000).toLocaleTimeString()), make("td", {}, link),
    make("td", {}, record.model), make("td", {}, record.mode ? `${record.mode} (${record.reason})` : "–"),
    make("td", {}, pair), number(first ? duration(first) : "–"), number(perToken(record)),
    number(duration(record.ended_s)), make("td", {}, outcome(record)));
}

function drawRequests(records) {
  $("requests-empty").hidden = records.length > 0;
  $("requests").hidden = records.length === 0;
  $("requests").tBodies[0].replaceChildren(...records.map(row));
}

// One request.

function drawFacts(record) {
  const facts = {
    "request": record.request_id, "client's id": record.client_id, "model": record.model, "endpoint": record.endpoint,
    "way": record.mode && `${record.mode} (${record.reason})`, "attempts": record.attempts,
    "outcome": record.code ? `${record.outcome}: ${record.code}` : record.outcome, "status": record.status,
    "first token": record.content_s && duration(record.content_s), "per token": perToken(record),
    "whole": duration(record.ended_s), "prompt tokens": record.prompt_tokens,
    "tokens": record.completion_tokens || record.num_events, "trace": record.trace_id,
  };
  const told = Object.entries(facts).filter(([, value]) => value);
  $("facts").replaceChildren(...told.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function drawStory(lines, degraded) {
  $("story-empty").hidden = lines.length > 0;
  $("story-empty").textContent = degraded
    ? "The store does not answer, so the Story cannot be read." : "There is no Story: no store is set, or it has been forgotten.";
  $("story").replaceChildren(...lines.map((line) => {
    const moved = line.before ? `${line.before} → ${line.after}` : "";
    const effects = line.effects.length ? `[${line.effects.join(", ")}]` : "";
    return make("li", {}, make("b", {}, `+${((line.at_s - lines[0].at_s) * 1000).toFixed(0)} ms `),
      make("span", { class: "quiet" }, `${line.attempt} ${line.writer} `), `${line.stage} `,
      [moved, effects, line.note].filter(Boolean).join(" "));
  }));
}

async function showOne(id) {
  shownId = id;
  $("one").hidden = !id;
  if (!id) return;
  const { record, story, degraded } = await read(`/admin/requests/${encodeURIComponent(id)}`);
  $("one-title").textContent = `Request ${record?.client_id || id}`;
  $("facts").hidden = $("timeline").hidden = record === null;
  if (record !== null) {
    drawFacts(record);
    $("timeline").replaceChildren(drawTimeline(record));
  }
  drawStory(story, degraded);
}

// Life.

const fromHash = () => decodeURIComponent(location.hash.slice(1));

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    notice(error instanceof TypeError ? "This router does not answer; the page shows what it said last." : error.message);
    $("access").classList.toggle("wanted", error instanceof NeedsKey);
  }
}

async function look() {
  await guarded(async () => {
    const state = await read("/readyz");
    drawState(state, null);
    const [fleet, { requests }] = await Promise.all([
      read("/admin/fleet"), read(`/admin/requests?limit=100&failed=${$("failed").checked}`),
    ]);
    notice("");
    $("access").classList.remove("wanted");
    drawState(state, fleet);
    drawFleet(fleet);
    drawRequests(requests);
  });
  document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
}

async function live() {
  if ($("live").checked && !document.hidden) await look();
  setTimeout(live, EVERY_MS);
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("admin-key", $("key").value);
  $("key").value = "";
  look();
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = encodeURIComponent($("wanted").value.trim());
});
$("failed").addEventListener("change", look);
$("close").addEventListener("click", () => { location.hash = ""; });
addEventListener("hashchange", () => guarded(() => showOne(fromHash())));
guarded(() => showOne(fromHash()));
live();
