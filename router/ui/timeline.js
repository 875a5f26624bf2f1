"use strict";
// A request's timeline from its record. Times of a record are seconds since the request had been read.

/** An element with attributes and children; text is always a text node, so nothing that it says can run. */
function make(name, attributes = {}, ...children) {
  const space = ["svg", "rect", "line", "text", "path", "title", "g", "circle"].includes(name)
    ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

/** Seconds as a reader likes them. */
function duration(seconds) {
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

/** Lanes of a record: {name, spans: [{from, to, kind, label}], marks: [{at, label}]}; what has not happened is missing. */
function lanesOf(record) {
  const lanes = [];
  const router = { name: "router", spans: [], marks: [] };
  const span = (lane, from, to, kind, label) => { if (to > from) lane.spans.push({ from, to, kind, label }); };
  const firstSent = record.earlier.length ? record.earlier[0].sent_s : record.sent_s;
  const queued = record.door_s + record.queued_s;
  span(router, 0, record.door_s, "door", "door: read and validated");
  span(router, record.door_s, queued, "queue", "queue");
  span(router, queued, firstSent, "place", "placed");
  lanes.push(router);
  record.earlier.forEach((one) => {
    const lane = { name: `attempt ${one.attempt}: ${one.prefill ? `${one.prefill} → ` : ""}${one.decode}`, spans: [], marks: [] };
    span(lane, one.sent_s, one.ended_s, "lost", one.code);
    lanes.push(lane);
  });
  if (record.attempts) addLegs(record, lanes, span);
  const first = record.content_s || record.first_byte_s;
  if (first) {
    const client = { name: "client", spans: [], marks: [{ at: first, label: record.content_s ? "first token" : "first byte" }] };
    span(client, first, Math.max(record.last_byte_s, first), "stream", record.stream ? "stream" : "answer");
    lanes.push(client);
  }
  return lanes;
}

function addLegs(record, lanes, span) {
  const end = record.ended_s, first = record.content_s || record.first_byte_s || end;
  if (record.prefill) {
    const lane = { name: `prefill ${record.prefill}`, spans: [], marks: [] };
    span(lane, record.sent_s, record.prefilled_s || end, record.prefilled_s ? "prefill" : "waiting", "prefill leg");
    if (record.prefilled_s) lane.marks.push({ at: record.prefilled_s, label: "prefill done" });
    lanes.push(lane);
  }
  const lane = { name: `decode ${record.decode || "(not chosen)"}`, spans: [], marks: [] };
  const sent = record.chosen_s ? record.chosen_s : record.mode === "pull" ? record.prefilled_s || end : record.sent_s;
  if (record.seats_s || record.kv_s) {
    const seated = sent + record.seats_s, ready = seated + record.kv_s;
    const met = Math.min(ready, Math.max(seated, record.prefilled_s));
    span(lane, sent, seated, "seats", "registration: decode reserves seats");
    span(lane, seated, met, "waiting", "seats wait for prefill");
    span(lane, met, ready, "transfer", "transfer of the KV cache");
    span(lane, ready, first, "decode", "first token after KV");
    lane.marks.push({ at: seated, label: "registered" }, { at: met, label: "rendezvous" }, { at: ready, label: "KV whole" });
  } else {
    span(lane, sent, first, "waiting", record.prefill ? "decode leg" : "prompt and first token");
  }
  lanes.push(lane);
}

const NAME_WIDTH = 190, WIDTH = 940, LANE = 34, TOP = 26;

/** The drawing of a record; the same facts stand in the list beside it. */
function drawTimeline(record) {
  const lanes = lanesOf(record);
  const whole = Math.max(record.ended_s, ...lanes.flatMap((lane) => lane.spans.map((one) => one.to)), 1e-6);
  const x = (seconds) => NAME_WIDTH + (seconds / whole) * (WIDTH - NAME_WIDTH - 20);
  const height = TOP + lanes.length * LANE + 8;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `Timeline of ${duration(whole)}` });
  for (let tick = 0; tick <= 5; tick += 1) {
    const at = (whole * tick) / 5;
    svg.append(
      make("line", { class: "tick", x1: x(at), x2: x(at), y1: TOP - 6, y2: height }),
      make("text", { class: "scale", x: x(at), y: 12, "text-anchor": tick === 5 ? "end" : "middle" }, duration(at)),
    );
  }
  lanes.forEach((lane, row) => {
    const y = TOP + row * LANE;
    const name = lane.name.length > 26 ? `${lane.name.slice(0, 25)}…` : lane.name;
    svg.append(make("text", { class: "lane", x: 0, y: y + 17 }, name, make("title", {}, lane.name)));
    for (const one of lane.spans) {
      const width = Math.max(x(one.to) - x(one.from), 1.5);
      const said = `${one.label}: ${duration(one.to - one.from)}`;
      svg.append(make("rect", { class: `span ${one.kind}`, x: x(one.from), y: y + 3, width, height: 20, rx: 3 }, make("title", {}, said)));
      if (width > said.length * 6.4) svg.append(make("text", { class: "said", x: x(one.from) + 6, y: y + 17 }, said));
    }
    for (const mark of lane.marks) {
      const said = `${mark.label} at ${duration(mark.at)}`;
      svg.append(make("circle", { class: "mark", cx: x(mark.at), cy: y + 13, r: 4.5 }, make("title", {}, said)));
    }
  });
  return svg;
}
