/* SPDX-License-Identifier: Apache-2.0
 * weft explain --html: what a plan does, from ops/plan/explain_page.c. */
"use strict";
const KERNEL = 1, CALL = 2, RECORD = 3, WAIT = 4; /* steps of a stream */
const [PARAM, GRAD, STATE, TEMP, RANGE] = [1, 2, 3, 7, 9]; /* kinds of buffers */
const FORWARD = 0, BACKWARD = 1; /* phases of kernels; updates come later */

/* Names, buckets and who writes what. */
function read(data) {
  const {explain, plan} = data, bucketOf = new Map(plan.bucket_calls.map((call, b) => [call, b]));
  const bucketOfBuffer = new Map(); /* of pieces the first */
  plan.bucket_calls.forEach((call, b) => plan.calls[call][5].forEach((member) => bucketOfBuffer.has(member) || bucketOfBuffer.set(member, b)));
  const bucketOfKernel = plan.kernels.map(([, , , , , outputs]) => {
    const found = outputs.find((buffer) => bucketOfBuffer.has(buffer));
    return found === undefined ? -1 : bucketOfBuffer.get(found);
  });
  const paint = (k) => (bucketOfKernel[k] >= 0 && plan.kernels[k][2] <= BACKWARD ? colour(bucketOfKernel[k])
    : plan.kernels[k][2] === FORWARD ? "var(--forward)" : plan.kernels[k][2] === BACKWARD ? "var(--backward)"
      : "var(--update)");
  const bucketPaint = (call) => (bucketOf.has(call) ? colour(bucketOf.get(call)) : "var(--other)");
  const known = plan.kernels.some((kernel) => kernel[3] > 0);
  return {explain, plan, bucketOf, bucketOfKernel, paint, bucketPaint, known,
          trains: explain.kind === "training"};
}

/* Program step on a clock; times by kernel and call in us. Communication runs beside compute, or, where a rank has
 * one core, between kernels. */
function replay(m, kernelTime, callTime, inline) {
  const {plan} = m, events = new Map(), spans = [], clocks = plan.step.map(() => 0), at = plan.step.map(() => 0);
  let exposed = 0, moved = true, shared = 0;
  const one = (s) => {
    const step = plan.step[s][at[s]], kind = step % 16, index = Math.floor(step / 16);
    const begin = inline ? shared : clocks[s];
    let end = begin;
    if (kind === WAIT) {
      if (!events.has(index)) {
        return false;
      }
      end = Math.max(begin, events.get(index));
      if (end > begin && !m.explain.streams[s].communicates) {
        exposed += end - begin;
        spans.push({stream: s, kind: "wait", start: begin, end});
      }
    } else if (kind === RECORD) {
      events.set(index, begin);
    } else {
      end = begin + (kind === KERNEL ? kernelTime(index) : callTime(index));
      spans.push({stream: s, kind: kind === KERNEL ? "kernel" : "call", id: index, start: begin, end});
      exposed += inline && kind === CALL ? end - begin : 0;
    }
    at[s]++;
    clocks[s] = end;
    shared = Math.max(shared, end);
    return true;
  };
  while (moved) {
    moved = false;
    const order = plan.step.map((_, s) => s).sort((a, b) => m.explain.streams[b].communicates - m.explain.streams[a].communicates);
    for (const s of order) {
      while (at[s] < plan.step[s].length && one(s)) {
        moved = true;
        if (inline && !m.explain.streams[s].communicates) {
          break; /* what became ready is sent before the next kernel */
        }
      }
    }
  }
  return {spans, end: Math.max(...clocks, 0), exposed};
}

function predicted(m) {
  const inline = m.plan.planner.inline && m.plan.planner.gradients.length > 0;
  return replay(m, (k) => (m.known ? m.plan.kernels[k][3] * 1e-6 : 1), (c) => m.plan.calls[c][2] * 1e-6, inline);
}

/* Of a profile the program replayed with its times, of a trace the spans of one step. */
function measured(m) {
  const from = m.plan.measured;
  if (!from) {
    return null;
  }
  const kernels = new Map(m.plan.kernels.map((kernel, k) => [kernel[0], k]));
  const calls = new Map(m.plan.calls.map((call, c) => [call[0], c]));
  if (from.kind === "profile") {
    const times = new Map(from.kernels), callTimes = new Map(from.collectives);
    const found = m.plan.kernels.filter((kernel) => times.has(kernel[0])).length;
    const run = replay(m, (k) => times.get(m.plan.kernels[k][0]) || 0, (c) => callTimes.get(m.plan.calls[c][0]) || 0, false);
    return {...run, step: from.step_us, text: "the median times of a profile, replayed", found};
  }
  const spans = from.spans.filter(([, , , start, us]) => start !== null && us !== null).map(([, kind, name, start, us]) => {
    const comm = kind === "collective", id = comm ? calls.get(name) : kernels.get(name);
    const communicates = comm || (kind === "wait" && id === undefined && false);
    return {stream: m.explain.streams.findIndex((s) => s.communicates === communicates), kind: comm ? "call" : kind, id, name,
            start, end: start + us};
  });
  /* Waits of the communicating stream are no exposed time: its thread has no kernels. */
  const busy = new Set(from.spans.filter(([, kind]) => kind === "collective").map(([thread]) => thread));
  const compute = new Set(from.spans.filter(([, kind]) => kind === "kernel").map(([thread]) => thread));
  const shown = spans.filter((span, i) => span.kind !== "wait" || compute.has(from.spans[i][0]) || !busy.has(from.spans[i][0]));
  const exposed = shown.filter((span) => span.kind === "wait").reduce((sum, span) => sum + span.end - span.start, 0);
  return {spans: shown, end: Math.max(...shown.map((span) => span.end), 0), exposed, step: from.step_us,
          text: `step ${from.step} of rank ${from.rank}, the one of median length of ${count(from.steps, "traced step")}`,
          found: shown.filter((span) => span.kind === "kernel" && span.id !== undefined).length};
}

function lanesOf(m, run, prefix) {
  const lanes = m.explain.streams.map((stream) => ({name: `${prefix} ${stream.name}`, spans: []}));
  for (const span of run.spans) {
    const name = span.kind === "wait" ? "" : span.name || (span.kind === "kernel" ? m.plan.kernels : m.plan.calls)[span.id][0];
    const kernel = span.kind === "kernel" ? m.plan.kernels[span.id] : null;
    const bucket = span.kind === "call" ? m.bucketOf.get(span.id) : undefined;
    const took = `${time(span.end - span.start)}, from ${time(span.start)} to ${time(span.end)}`;
    (lanes[span.stream] || lanes[0]).spans.push({start: span.start, end: span.end, kind: span.kind, of: span,
      paint: span.kind === "wait" ? "var(--warn)" : span.kind === "call" ? m.bucketPaint(span.id) : kernel ? m.paint(span.id) : "var(--other)",
      label: bucket !== undefined ? `${bucket}` : null,
      tip: span.kind === "wait" ? `waits for communication: ${took}` : `${name}${kernel ? ` (${kernel[1]})` : ""}: ${took}`});
  }
  for (const lane of lanes) {
    lane.spans.sort((a, b) => a.start - b.start);
  }
  return lanes.filter((lane) => lane.spans.length > 0);
}

function tiles(m, forecast, real) {
  const e = m.explain, out = [];
  if (e.predicted_step_us !== undefined) {
    const other = m.plan.planner.inline ? `overlapped: ${time(e.step_us)}` : `inline: ${time(e.step_inline_us)}`;
    out.push(tile("Step, predicted", time(e.predicted_step_us), `communication ${m.plan.planner.inline ? "inline" : "overlapped"}; ${other}`));
  }
  if (real) {
    out.push(tile("Step, measured", time(real.step), e.predicted_step_us ? `${digits(real.step / e.predicted_step_us)} × predicted` : ""));
  }
  if (m.known) {
    const comm = forecast.spans.filter((s) => s.kind === "call").reduce((sum, s) => sum + s.end - s.start, 0);
    out.push(tile("Exposed communication", time(forecast.exposed), `${percent(forecast.exposed, forecast.end)} of the step; ${time(comm)} in all`));
  }
  if (real) {
    out.push(tile("Exposed, measured", time(real.exposed), `${percent(real.exposed, real.step)} of the step`));
  }
  if (m.trains) {
    const sum = e.buckets.reduce((all, bucket) => all + bucket.bytes, 0);
    out.push(tile("Buckets", `${e.buckets.length}`, `${bytes(sum)} of gradients; policy ${e.policy}`));
  }
  out.push(tile("Memory of a rank", bytes(e.arena_bytes), `${bytes(e.live_bytes)} live at once`));
  return el("div", {class: "tiles"}, out);
}

function timelineCard(m, forecast, real) {
  const end = Math.max(forecast.end, real ? real.end : 0);
  const lanes = [...lanesOf(m, forecast, real ? "predicted" : ""), ...(real ? lanesOf(m, real, "measured") : [])];
  const ready = m.plan.planner.ready_ps * 1e-6;
  if (lanes.length === 0 || !(end > 0)) {
    return card("timeline", "Timeline", "The step of this plan runs nothing that takes time.");
  }
  const about = (m.known ? `One step by the costs the plan was compiled with${m.explain.costs ? ` (${m.explain.costs})` : ""}.`
    : "No times were predicted for the kernels of this plan: each counts as 1 µs, so only the order is meant.") +
    (m.explain.accumulate > 1 ? ` Shown is the last of ${m.explain.accumulate} micro-batches.` : "") +
    (real ? ` Below it ${real.text} (${real.found} of ${m.plan.kernels.length} kernels found by name).` : "");
  return card("timeline", "Timeline", about,
    el("div", {class: "bar"}, legend(["forward", "var(--forward)"], ["backward", "var(--backward)"], ["writes gradients of bucket 0, and so on", colour(0)],
      ["update", "var(--update)"], ["exposed: compute waits", "var(--warn)"], ["other collectives", "var(--other)"])),
    timeline({lanes, end, label: "Timeline of one step",
      marks: m.known && m.explain.accumulate === 1 && ready > 0 && ready < end ? [{at: ready, text: `last gradient is ready at ${time(ready)}`}] : []}));
}

/* Where the plan's own buckets would end, at other costs: as wefti_bucket_forecast. */
function keepBuckets(m, model) {
  const index = new Map(model.gradients.map((gradient, g) => [gradient[0], g]));
  const made = [];
  for (const bucket of m.explain.buckets) {
    const members = bucket.members.map((name) => index.get(name)).filter((g) => g !== undefined);
    if (members.length > 0) {
      const all = members.reduce((sum, g) => sum + model.gradients[g][2], 0);
      made.push({ready: Math.max(...members.map((g) => model.gradients[g][1])), count: members.length, 
        bytes: bucket.part ? Planner.piece(model.gradients[members[0]], bucket.part - 1, bucket.parts) : all});
    }
  }
  let now = 0;
  return made.sort((a, b) => a.ready - b.ready).map((bucket) => {
    const start = Math.max(now, bucket.ready);
    now = start + Planner.cost(model.cost, bucket.bytes, model.rate, model.factor);
    return {...bucket, start, finish: now};
  });
}

function whatIfCard(m, data) {
  const {planner, ranks} = m.plan, world = m.explain.world;
  if (planner.gradients.length === 0 || planner.cost.pieces.length + planner.cost.points.length === 0) {
    return m.trains ? card("what-if", "What if", "This plan does not hold the costs of its buckets: it was compiled by an earlier version, or predicts nothing.") : null;
  }
  const pieces = (cap) => planner.gradients.reduce((n, gradient) => n + Planner.parts(gradient, cap), 0);
  if (!(pieces(planner.cap_bytes) <= 5000)) {
    return card("what-if", "What if", "The buckets of this plan have too many pieces to plan them here.");
  }
  const rates = [-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12].map((x) => 2 ** (x / 4));
  const counts = [...new Set([...ranks.table.map((row) => row.ranks), world])].sort((a, b) => a - b);
  const largest = planner.gradients.reduce((sum, g) => sum + g[2], 0);
  const caps = [...new Set([planner.cap_bytes, ...[...Array(24).keys()].map((x) => 2 ** (x + 14))
    .filter((cap) => cap < largest && pieces(cap) <= 1500)])].filter((cap) => cap > 0)
    .sort((a, b) => a - b).concat([0]);
  const slider = (id, text, values, start, show) => {
    const out = el("output", {for: id});
    const input = el("input", {type: "range", id, min: 0, max: values.length - 1, value: Math.max(0, values.indexOf(start)), step: 1});
    const tell = () => {
      out.textContent = show(values[input.value]);
      input.setAttribute("aria-valuetext", out.textContent);
    };
    tell();
    return {value: () => values[input.value], tell, input, start,
            reset: () => (input.value = Math.max(0, values.indexOf(start))),
            node: el("label", {for: id}, text, el("span", {}, out), input)};
  };
  const controls = [slider("rate", "Link rate", rates, 1, (x) => (x === 1 ? "as compiled" : x > 1 ? `${digits(x)} × faster` : `${digits(1 / x)} × slower`)),
    slider("ranks", "Ranks", counts, world, (x) => `${x}${x === world ? " (this plan)" : ""}`),
    slider("cap", "Bucket cap", caps, planner.cap_bytes, (x) => (x === 0 ? "none" : bytes(x)))];
  const result = el("div", {class: "tiles", id: "what-if-result", "aria-live": "polite"});
  const start = Planner.whatIf(data, 1, world, planner.cap_bytes);
  let now = start, kept = [];
  const strip = drawn((width) => {
    const left = 128, w = width - left - 12, end = Math.max(now.done, start.done, planner.ready_ps, ...kept.map((b) => b.finish)) * 1.02 || 1;
    const px = (ps) => left + ps / end * w;
    const out = sv("svg", {width, height: 104, viewBox: `0 0 ${width} 104`, role: "img", "aria-label": "When buckets are sent"});
    ticks(0, end * 1e-6, w / 120).forEach((t) => out.append(sv("line", {class: "grid", x1: px(t * 1e6), x2: px(t * 1e6), y1: 4, y2: 82}),
      sv("text", {class: "soft", x: px(t * 1e6), y: 98, "text-anchor": "middle"}, time(t))));
    [["planned anew", now.buckets], ["this plan's buckets", kept]].forEach(([name, buckets], row) => {
      out.append(sv("text", {class: "soft", x: left - 10, y: 28 + row * 36, "text-anchor": "end"}, name));
      buckets.forEach((bucket, b) => out.append(tip.on(sv("rect", {class: "span", x: px(bucket.start), y: 10 + row * 36, height: 26,
        width: Math.max(1, px(bucket.finish) - px(bucket.start)), fill: colour(b), rx: 2}),
      () => `bucket ${b}: ${bytes(bucket.bytes)}, ready at ${time(bucket.ready * 1e-6)},\nsent from ${time(bucket.start * 1e-6)} to ${time(bucket.finish * 1e-6)}`)));
    });
    out.append(tip.on(sv("line", {class: "mark", x1: px(planner.ready_ps), x2: px(planner.ready_ps), y1: 0, y2: 82}),
      () => `last gradient is ready at ${time(planner.ready_ps * 1e-6)}`));
    return out;
  });
  const update = () => {
    const [rate, count_, cap] = controls.map((control) => control.value());
    now = Planner.whatIf(data, rate, count_, cap);
    const factor = count_ === world ? () => 1 : Planner.ratio(ranks, world, count_);
    kept = keepBuckets(m, {gradients: planner.gradients, cost: planner.cost, alone: planner.alone, rate, factor});
    const keptDone = kept.length > 0 ? kept[kept.length - 1].finish : 0;
    const keptStep = Planner.step(planner, keptDone, kept.reduce((sum, b) => sum + b.finish - b.start, 0));
    const change = 100 * (now.step / start.step - 1);
    result.replaceChildren(
      tile("Step, planned anew", time(now.step * 1e-6), Math.abs(change) < 0.05 ? "as now"
        : el("span", {class: change > 0 ? "up" : "down"}, `${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(1)} % against now`)),
      tile("Step, this plan's buckets", time(keptStep * 1e-6), keptStep > now.step * 1.0005 ? `${(100 * (keptStep / now.step - 1)).toFixed(1)} % longer` : "no longer"),
      tile("Buckets", `${now.buckets.length}`, `the optimum has ${now.optimumCount}`),
      tile("Last bucket is done", time(now.done * 1e-6), `last gradient is ready at ${time(planner.ready_ps * 1e-6)}`),
      tile("Past the last gradient", time(now.exposed * 1e-6), `${percent(now.exposed, now.step)} of the step; updates may hide some`));
    Object.assign(result.dataset, {doneUs: now.done * 1e-6, optimumUs: now.optimum * 1e-6, buckets: now.buckets.length,
                                   optimumBuckets: now.optimumCount, stepUs: now.step * 1e-6, keptUs: keptDone * 1e-6});
    controls.forEach((control) => control.tell());
    strip.again();
  };
  controls.forEach((control) => control.input.addEventListener("input", update));
  update();
  const scaled = ranks.costs !== m.explain.costs
    ? ` Other numbers of ranks scale these costs by the table "${ranks.costs}", not by the plan's "${m.explain.costs}".` : "";
  return card("what-if", "What if",
    `The planner's recurrence, computed here, with other costs. Compute and the batch of a rank stay the same; the link rate divides all time that grows with bytes.${scaled}`,
    el("div", {class: "sliders"}, controls.map((control) => control.node)), result,
    el("div", {style: "margin-top:14px"}, strip),
    el("div", {class: "bar"}, el("button", {onclick: () => (controls.forEach((control) => control.reset()), update())}, "As compiled")));
}

/* Layers run down; the backward pass lies beside the forward pass, and buckets beside what fills them. */
function graphCard(m) {
  const {plan} = m, ran = new Set(), order = [];
  plan.step.flat().forEach((step) => {
    const index = Math.floor(step / 16);
    if (step % 16 === KERNEL && !ran.has(index)) {
      ran.add(index);
      order.push(index);
    }
  });
  if (order.length === 0) {
    return null;
  }
  if (order.length > 6000) {
    return card("graph", "Graph", `${order.length} kernels are too many to draw; the tables below list the buckets.`);
  }
  const last = new Map(), edges = [], level = new Map(), sinks = new Map();
  order.forEach((k) => {
    plan.kernels[k][4].forEach((buffer) => last.has(buffer) && last.get(buffer) !== k && edges.push([last.get(buffer), k]));
    plan.kernels[k][5].forEach((buffer) => buffer >= 0 && last.set(buffer, k));
  });
  const phase = (k) => Math.min(2, plan.kernels[k][2]);
  order.forEach((k) => level.set(k, 0));
  edges.filter(([a, b]) => phase(a) === FORWARD && phase(b) === FORWARD).forEach(([a, b]) => level.set(b, Math.max(level.get(b), level.get(a) + 1)));
  order.forEach((k) => sinks.set(k, 0)); /* how late in the backward pass */
  edges.filter(([a, b]) => phase(a) === BACKWARD && phase(b) === BACKWARD).forEach(([a, b]) => sinks.set(b, Math.max(sinks.get(b), sinks.get(a) + 1)));
  const depth = order.filter((k) => phase(k) === FORWARD).reduce((most, k) => Math.max(most, level.get(k)), 0);
  const back = order.filter((k) => phase(k) === BACKWARD).reduce((most, k) => Math.max(most, sinks.get(k)), 0);
  const row = 24, boxW = 112, boxH = 17, places = new Map(), used = new Map(), rows = Math.max(depth, back);
  const wide = [1, 1, 1], at = (lane, y) => { /* three side by side, others in the next row with room */
    while ((used.get(`${lane} ${y}`) || 0) === 3) {
      y++;
    }
    const slot = used.get(`${lane} ${y}`) || 0;
    used.set(`${lane} ${y}`, slot + 1);
    wide[lane] = Math.max(wide[lane], slot + 1);
    lowest = Math.max(lowest, y);
    return {lane, y, slot};
  };
  let lowest = rows;
  const spread = (value, of) => Math.round(of > 0 ? value * rows / of : 0);
  order.forEach((k) => {
    const lane = phase(k);
    if (lane < 2) {
      const y = lane === FORWARD ? spread(level.get(k), depth) : rows - spread(sinks.get(k), back);
      places.set(k, at(lane, y));
    }
  });
  const writersOf = new Map();
  order.filter((k) => places.has(k)).forEach((k) => plan.kernels[k][5].forEach((buffer) => writersOf.set(buffer, [...(writersOf.get(buffer) || []), k])));
  const buckets = m.explain.buckets.map((bucket, b) => {
    const writers = [...new Set(plan.calls[plan.bucket_calls[b]][5].flatMap((member) => writersOf.get(member) || []))];
    const mean = writers.reduce((sum, k) => sum + places.get(k).y, 0) / Math.max(1, writers.length);
    return {bucket, b, writers, y: mean};
  });
  let free = 0;
  [...buckets].sort((a, b) => a.y - b.y).forEach((item) => {
    item.row = Math.max(free, Math.round(item.y));
    free = item.row + 2;
  });
  const gap = 24, lanes = [16, 0, 0];
  lanes[1] = lanes[0] + wide[0] * (boxW + gap) + 46;
  lanes[2] = lanes[1] + wide[1] * (boxW + gap) + 70;
  const width = lanes[2] + (m.trains ? 190 : 0), top = 30, height = top + (Math.max(lowest, free) + 1) * row + 10;
  const point = (k) => {
    const place = places.get(k);
    return [lanes[place.lane] + place.slot * (boxW + gap), top + place.y * row];
  };
  const detail = el("div", {class: "detail", "aria-live": "polite"}, "Select a kernel or a bucket: click it, or focus the graph and use the arrow keys.");
  const links = sv("g", {fill: "none", stroke: "var(--line)", "stroke-width": 1}), lit = sv("g", {fill: "none", stroke: "var(--accent)", "stroke-width": 1.8});
  const path = (a, b) => {
    const [x0, y0] = point(a), [x1, y1] = point(b), up = y1 < y0, same = places.get(a).lane === places.get(b).lane;
    if (same && x0 === x1 && Math.abs(y1 - y0) > row) { /* past what lies between */
      const x = x0 + boxW, out = x + 14 + Math.min(20, Math.abs(y1 - y0) / row);
      return `M${x},${y0 + boxH / 2}C${out},${y0 + boxH / 2} ${out},${y1 + boxH / 2} ${x},${y1 + boxH / 2}`;
    }
    const from = same ? [x0 + boxW / 2, y0 + (up ? 0 : boxH)] : [x0 + (x1 > x0 ? boxW : 0), y0 + boxH / 2];
    const to = same ? [x1 + boxW / 2, y1 + (up ? boxH : 0)] : [x1 + (x1 > x0 ? 0 : boxW), y1 + boxH / 2];
    const bend = same ? `C${from[0]},${(from[1] + to[1]) / 2} ${to[0]},${(from[1] + to[1]) / 2}` : `C${(from[0] + to[0]) / 2},${from[1]} ${(from[0] + to[0]) / 2},${to[1]}`;
    return `M${from.map((v) => v.toFixed(0))}${bend} ${to.map((v) => v.toFixed(0))}`;
  };
  const between = edges.filter(([a, b]) => places.has(a) && places.has(b));
  links.append(sv("path", {d: between.filter(([a, b]) => places.get(a).lane === places.get(b).lane).map(([a, b]) => path(a, b)).join("")}));
  const nodes = new Map(), shapes = sv("g", {});
  let chosen = null;
  const bucketPath = (item, k) => {
    const [x, y] = point(k), to = [lanes[2], top + item.row * row + 14];
    return `M${x + boxW},${y + boxH / 2}C${(x + boxW + to[0]) / 2},${y + boxH / 2} ${(x + boxW + to[0]) / 2},${to[1]} ${to}`;
  };
  const select = (key, scroll) => {
    if (chosen !== null) {
      nodes.get(chosen).classList.remove("chosen");
    }
    chosen = key;
    nodes.get(key).classList.add("chosen");
    if (key[0] === "k") {
      const k = Number(key.slice(1)), [name, op, , ps, inputs, outputs] = plan.kernels[k], b = m.bucketOfKernel[k];
      const list = (ids) => ids.filter((id) => id >= 0).map((id) => `${plan.buffers[id][0]} (${bytes(plan.buffers[id][2])})`).join(", ");
      detail.replaceChildren(el("b", {}, name), ` ${op}, ${["forward", "backward", "update"][phase(k)]}`, ps > 0 ? `, ${time(ps * 1e-6)} predicted` : "",
        b >= 0 ? `, fills bucket ${b}` : "", el("div", {}, `reads ${list(inputs) || "nothing"}`), el("div", {}, `writes ${list(outputs)}`));
      lit.replaceChildren(sv("path", {d: between.filter(([a, c]) => a === k || c === k).map(([a, c]) => path(a, c)).join("")}));
    } else {
      const item = buckets[Number(key.slice(1))], {bucket} = item;
      detail.replaceChildren(el("b", {}, bucket.name), ` ${bucket.op}, ${bytes(bucket.bytes)}, algorithm ${bucket.algorithm}`,
        el("div", {}, bucket.members.join(", ")), el("div", {}, bucket.reason || ""));
      lit.replaceChildren(sv("path", {d: item.writers.map((k) => bucketPath(item, k)).join("")}));
    }
    if (scroll) {
      const box = nodes.get(key).getBBox(), zoom = svg.getBoundingClientRect().width / width || 1;
      view.scrollTo({left: box.x * zoom - view.clientWidth / 2, top: box.y * zoom - view.clientHeight / 2});
    }
  };
  const short = (text) => (text.length > 16 ? `${text.slice(0, 15)}…` : text);
  order.filter((k) => places.has(k)).forEach((k) => {
    const [x, y] = point(k), paint = m.paint(k);
    const node = sv("rect", {x, y, width: boxW, height: boxH, rx: 3, fill: paint, onclick: () => select(`k${k}`)});
    nodes.set(`k${k}`, node);
    shapes.append(tip.on(node, () => `${plan.kernels[k][0]} (${plan.kernels[k][1]})${plan.kernels[k][3] ? `\n${time(plan.kernels[k][3] * 1e-6)}` : ""}`),
      sv("text", {x: x + boxW / 2, y: y + 12, "text-anchor": "middle", style: "pointer-events:none;fill:#fff"}, short(plan.kernels[k][1])));
  });
  buckets.forEach((item) => {
    const y = top + item.row * row, key = `b${item.b}`;
    links.append(sv("path", {d: item.writers.map((k) => bucketPath(item, k)).join(""), stroke: colour(item.b), "stroke-opacity": 0.7}));
    const node = sv("rect", {x: lanes[2], y, width: 160, height: 34, rx: 4, fill: colour(item.b), onclick: () => select(key)});
    nodes.set(key, node);
    shapes.append(tip.on(node, () => `${item.bucket.name}: ${bytes(item.bucket.bytes)}, ${count(item.bucket.members.length, "tensor")}\n${item.bucket.reason || ""}`),
      sv("text", {x: lanes[2] + 10, y: y + 14, style: "pointer-events:none;fill:#fff;font-weight:600"}, short(item.bucket.name)),
      sv("text", {x: lanes[2] + 10, y: y + 27, style: "pointer-events:none;fill:#fff"}, `${bytes(item.bucket.bytes)}, ${short(item.bucket.algorithm)}`));
  });
  const heads = [["forward ↓", lanes[0]], ...(m.trains ? [["backward ↑", lanes[1]], ["buckets", lanes[2]]] : [])];
  const svg = sv("svg", {viewBox: `0 0 ${width} ${height}`, width, height, style: "max-width:none"}, links, lit, shapes,
    heads.map(([text, x]) => sv("text", {class: "soft", x, y: 16}, text)));
  const view = el("div", {class: "scroll", style: "max-height:640px"}, svg);
  const keys = [...nodes.keys()];
  view.tabIndex = 0;
  view.setAttribute("role", "application");
  view.setAttribute("aria-label", "Graph of kernels and buckets");
  view.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key];
    if (event.key === "b" && buckets.length > 0) {
      select("b0", true);
    } else if (step && !event.ctrlKey && !event.altKey && !event.metaKey) {
      select(keys[Math.min(Math.max(0, (chosen === null ? -1 : keys.indexOf(chosen)) + step), keys.length - 1)], true);
      event.preventDefault();
    }
  });
  let scale = 1;
  const zoom = (to) => {
    scale = Math.min(2, Math.max(0.08, to));
    svg.setAttribute("width", width * scale);
    svg.setAttribute("height", height * scale);
  };
  /* Not wider than the page, if it is still to be read. */
  whenShown.push(() => zoom(Math.min(1, Math.max(0.6, view.clientWidth / width))));
  return card("graph", "Graph",
    `${count(order.length, "kernel")} of a step, the forward pass from top to bottom${m.trains ? ", the backward pass beside it from bottom to top" : ""}. Kernels that write a gradient have the colour of its bucket${m.trains ? "; updates are not drawn" : ""}.`,
    el("div", {class: "bar"}, el("button", {onclick: () => zoom(scale * 1.3)}, "Zoom in"), el("button", {onclick: () => zoom(scale / 1.3)}, "Zoom out"),
      el("button", {onclick: () => zoom(Math.min(1, view.clientWidth / width))}, "Fit width"), el("button", {onclick: () => zoom(Math.min(640 / height, view.clientWidth / width))}, "All"),
      el("span", {class: "legend"}, "Arrow keys select in the order of execution, b selects the first bucket.")),
    view, detail);
}

/* What lasts, and temporaries from their first writer to their last reader. */
function memoryCard(m, run) {
  const {plan} = m, life = new Map(), lasting = {};
  const touch = (id, start, end) => {
    if (id >= 0 && plan.buffers[id][4] && plan.buffers[id][1] !== RANGE) {
      const was = life.get(id) || [start, end];
      life.set(id, [Math.min(was[0], start), Math.max(was[1], end)]);
    }
  };
  run.spans.forEach((span) => {
    if (span.kind === "kernel") {
      [...plan.kernels[span.id][4], ...plan.kernels[span.id][5]].forEach((id) => touch(id, span.start, span.end));
    } else if (span.kind === "call") {
      [plan.calls[span.id][3], plan.calls[span.id][4], ...plan.calls[span.id][5]].forEach((id) => touch(id, span.start, span.end));
    }
  });
  const groups = [["parameters", colour(0)], ["gradients", colour(1)], ["optimizer state", colour(2)], ["inputs, constants, outputs", "var(--other)"]];
  plan.buffers.forEach(([, kind, size, offset, passes]) => {
    if (!passes && kind !== RANGE && offset >= 0) {
      const name = groups[{[PARAM]: 0, [GRAD]: 1, [STATE]: 2, 10: 0}[kind] ?? 3][0];
      lasting[name] = (lasting[name] || 0) + size;
    }
  });
  const changes = [], alive = new Set();
  life.forEach(([start, end], id) => changes.push([start, id], [end, id]));
  changes.sort((a, b) => a[0] - b[0]);
  const held = () => { /* kernels in place and views share memory: bytes of the arena count once */
    let sum = 0, until = -1;
    [...alive].map((id) => [plan.buffers[id][3], plan.buffers[id][3] + plan.buffers[id][2]]).sort((a, b) => a[0] - b[0]).forEach(([from, to]) => {
      sum += Math.max(0, to - Math.max(from, until));
      until = Math.max(until, to);
    });
    return sum;
  };
  const base = Object.values(lasting).reduce((a, b) => a + b, 0), steps = [[0, base]];
  let most = 0, when = 0;
  for (let i = 0, t; i < changes.length;) {
    for (t = changes[i][0]; i < changes.length && changes[i][0] === t; i++) {
      const id = changes[i][1];
      life.get(id)[1] <= t ? alive.delete(id) : alive.add(id);
    }
    const live = held();
    [most, when] = live > most ? [live, t] : [most, when];
    steps.push([t, base + live]);
  }
  steps.push([run.end, steps[steps.length - 1][1]]);
  let below = 0;
  const flat = groups.filter(([name]) => lasting[name]).map(([name, paint]) => {
    const [low, high] = [below, below += lasting[name]];
    return {name, paint, area: true, points: [[0, high], [run.end, high]], base: [[run.end, low], [0, low]]};
  });
  const series = [{name: "activations", paint: "var(--forward)", area: true, points: steps, base: [[run.end, base], [0, base]]}, ...flat];
  const largest = [...life.entries()].filter(([, [start, end]]) => start <= when && end > when).sort((a, b) => plan.buffers[b[0]][2] - plan.buffers[a[0]][2]).slice(0, 200);
  return card("memory", "Memory over time",
    `What a rank holds during the predicted step. Temporaries count from their first writer to their last reader; at most ${bytes(most)} of them at ${time(when)}. The arena of ${bytes(m.explain.arena_bytes)} also has padding${m.explain.world > 1 && m.explain.sharded ? " and places of all shards" : ""} and what lies between.`,
    el("div", {class: "bar"}, legend(["activations and other temporaries", "var(--forward)"], ...flat.map((s) => [`${s.name} ${bytes(lasting[s.name])}`, s.paint]))),
    drawn((width) => chart({width, height: 240, series, label: "Memory over time", stepped: true, x: {low: 0, high: run.end, text: time},
      y: {high: Math.max(m.explain.arena_bytes, base + most) * 1.04, ticks: byteTicks(Math.max(m.explain.arena_bytes, base + most)), text: bytes}, marks: [{y: m.explain.arena_bytes, text: `arena ${bytes(m.explain.arena_bytes)}`}]})),
    largest.length > 0 ? el("details", {style: "margin-top:8px"}, el("summary", {}, `What is alive at the peak: the ${largest.length === 200 ? "200 largest" : count(largest.length, "tensor")}`),
      table([["tensor", false, ([id]) => plan.buffers[id][0], "name"], ["bytes", true, ([id]) => bytes(plan.buffers[id][2])],
        ["from", true, ([, [start]]) => time(start)], ["to", true, ([, [, end]]) => time(end)]], largest, 300)) : null);
}
function byteTicks(most) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, most / 5))), out = [];
  for (let x = 0; x <= most; x += step) {
    out.push(x);
  }
  return out;
}

function bucketsCard(m, run) {
  if (!m.trains || m.explain.buckets.length === 0) {
    return null;
  }
  const sent = new Map(run.spans.filter((span) => span.kind === "call").map((span) => [span.id, span]));
  const rows = m.explain.buckets.map((bucket, b) => ({bucket, b, span: sent.get(m.plan.bucket_calls[b])}));
  return card("buckets", "Buckets", null, table([
    ["", false, ({b}) => el("i", {class: "chip", style: `background:${colour(b)}`})], ["bucket", false, ({bucket}) => bucket.name, "name"],
    ["bytes", true, ({bucket}) => bytes(bucket.bytes)], ["tensors", true, ({bucket}) => (bucket.part ? `piece ${bucket.part}/${bucket.parts}` : `${bucket.members.length}`)],
    ["collective", false, ({bucket}) => `${bucket.op}${bucket.update ? " + update" : ""} ${bucket.dtype}`], ["algorithm", false, ({bucket}) => bucket.algorithm, "name"],
    ["sent from", true, ({span}) => (span ? time(span.start) : "–")], ["to", true, ({span}) => (span ? time(span.end) : "–")],
    ["why it ends here", false, ({bucket}) => bucket.reason || "", "why"]], rows));
}

function algorithmsCard(m) {
  const {ranks} = m.plan, names = [...new Set(ranks.table.flatMap((row) => row.rows.map((cell) => cell[2])))];
  if (ranks.table.length === 0) {
    return null;
  }
  const sizes = ranks.table[0].rows.map((cell) => cell[0]), shade = new Map(names.map((name, i) => [name, `hsl(${Math.round((150 + i * 137.5) % 360)} 55% 50% / .28)`]));
  const near = (size) => m.explain.buckets.filter((bucket) => Math.round(Math.log2(bucket.bytes / 1024) / 2) === Math.round(Math.log2(size / 1024) / 2)).length;
  return card("algorithms", "Algorithm per size",
    `The quickest ${ranks.op} on one host by number of ranks and bytes, in the order of ranks, by the cost table "${ranks.costs}". The plan's buckets keep the algorithms listed above.`,
    el("div", {class: "scroll", tabindex: 0}, el("table", {}, el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "ranks"), sizes.map((size) => el("th", {scope: "col"}, bytes(size))))),
      el("tbody", {}, ranks.table.map((row) => el("tr", {class: row.ranks === m.explain.world ? "own" : ""}, el("th", {scope: "row"}, `${row.ranks}`),
        row.rows.map(([, ps, name]) => el("td", {class: "algo", style: `background:${shade.get(name)}`}, name, el("br"), el("span", {class: "sub"}, time(ps * 1e-6)))))),
      m.explain.buckets.length > 0 ? el("tr", {}, el("th", {scope: "row"}, "buckets"), sizes.map((size) => el("td", {}, near(size) ? `${near(size)}` : ""))) : null))));
}

function explainPage(data) {
  const m = read(data), forecast = predicted(m), real = measured(m), e = m.explain;
  page({
    title: e.model || "plan",
    sub: `${m.trains ? "training" : "inference"} plan, ${count(e.world, "rank")}, batch ${e.batch}${m.trains ? `, ${e.optimizer}` : ""}${e.topology ? `, ${e.topology}` : ""}`,
    sections: [() => tiles(m, forecast, real), () => timelineCard(m, forecast, real), () => whatIfCard(m, data), () => graphCard(m),
               () => memoryCard(m, forecast), () => bucketsCard(m, forecast), () => algorithmsCard(m)],
    foot: `Written by weft explain --html. Structure ${e.structure_digest.slice(0, 16)}, weights ${e.weights_digest.slice(0, 16)}.`,
  });
}
explainPage(JSON.parse(document.getElementById("data").textContent));
