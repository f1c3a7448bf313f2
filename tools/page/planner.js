/* SPDX-License-Identifier: Apache-2.0
 * The recurrence of fusion/planner.c: F(j) = min over i < j of max(F(i), r_j) + T(bytes of i+1..j),
 * and the fewest buckets that end within 0.1 % of F(n). Times in picoseconds. */
"use strict";
const Planner = {
  /* T(bytes): the least of the pieces, or between points. rate divides what grows with bytes; factor
   * multiplies the whole. */
  cost(cost, bytes, rate, factor) {
    let ps = 0;
    const points = cost.points;
    if (points.length > 0) {
      const first = points[0][1];
      if (bytes <= points[0][0] || points.length === 1) {
        ps = first;
      } else {
        let low = 0;
        while (low < points.length - 2 && points[low + 1][0] <= bytes) {
          low++;
        }
        const [a, b] = [points[low], points[low + 1]];
        let at = (bytes - a[0]) / (b[0] - a[0]);
        at = b[1] < a[1] ? Math.min(at, 1) : at;
        ps = a[1] + (b[1] - a[1]) * at;
      }
      ps = Math.max(0, first + (ps - first) / rate);
    } else if (cost.pieces.length > 0) {
      ps = Infinity;
      for (const piece of cost.pieces) {
        ps = Math.min(ps, piece[0] + piece[1] * bytes / 1024 / rate);
      }
    }
    return ps * factor(bytes);
  },

  parts(gradient, cap) {
    const [, , bytes, unit] = gradient;
    return cap === 0 || bytes <= cap ? 1 : Math.ceil(Math.floor(bytes / unit) / Math.max(1, Math.floor(cap / unit)));
  },

  piece([, , bytes, unit], part, parts) {
    const units = Math.floor(bytes / Math.max(1, unit));
    return parts > 1 ? (Math.floor(units * (part + 1) / parts) - Math.floor(units * part / parts)) * unit : bytes;
  },

  /* One item per gradient, and one per piece of a gradient above the cap. */
  items(gradients, cap) {
    const items = [], itemOf = [];
    let ready = 0, first = 0;
    gradients.forEach((gradient, g) => {
      const [, at, , , firstWith] = gradient, parts = Planner.parts(gradient, cap);
      const alone = parts > 1 || (g > 0 && Planner.parts(gradients[g - 1], cap) > 1);
      ready = Math.max(ready, at);
      first = Math.max(alone ? g : first, firstWith);
      itemOf.push(items.length);
      for (let part = 0; part < parts; part++) {
        items.push({ready, bytes: Planner.piece(gradient, part, parts), firstWith: parts > 1 ? items.length : itemOf[first]});
      }
    });
    return items;
  },

  /* model: {gradients, cost, alone, rate, factor, cap}. */
  prepare(model) {
    const cap = model.cap > 0 ? Math.max(model.cap, ...model.gradients.map((g) => g[3])) : 0;
    const items = Planner.items(model.gradients, cap), n = items.length;
    const sums = [0], earliest = [0];
    let first = 0;
    for (let j = 1; j <= n; j++) {
      sums.push(sums[j - 1] + items[j - 1].bytes);
      first = Math.max(first, items[j - 1].firstWith);
      while (cap > 0 && first < j - 1 && sums[j] - sums[first] > cap) {
        first++;
      }
      earliest.push(first);
    }
    const alone = model.alone.pieces.length + model.alone.points.length > 0 ? model.alone : null;
    const {points} = model.cost;
    const rises = model.cost.points.every((p, i) => i === 0 || p[1] >= points[i - 1][1]) && model.factorRises !== false;
    const cost = (bytes, count) =>
      Planner.cost(count === 1 && alone ? alone : model.cost, bytes, model.rate, model.factor);
    return {items, n, sums, earliest, alone, cost, rises};
  },

  /* One layer: the best way to end a bucket at every j after a way in before. */
  layer(p, before, after, from) {
    for (let j = 1; j <= p.n; j++) {
      let best = Infinity, origin = 0;
      const ready = p.items[j - 1].ready;
      for (let i = j - 1; i >= p.earliest[j]; i--) {
        const took = p.cost(p.sums[j] - p.sums[i], j - i);
        const done = Math.max(before[i], ready) + took;
        if (done < best) {
          best = done;
          origin = i;
        }
        if (p.rises && !p.alone && ready + took >= best) {
          break; /* more bytes take no less */
        }
      }
      after[j] = best;
      from[j] = origin;
    }
  },

  /* When buckets that end at ends are done, each. */
  finish(p, ends) {
    let now = 0, first = 0;
    return ends.map((end) => {
      const start = Math.max(now, p.items[end - 1].ready);
      now = start + p.cost(p.sums[end] - p.sums[first], end - first);
      const bucket = {first, end, ready: p.items[end - 1].ready, start, finish: now, bytes: p.sums[end] - p.sums[first]};
      first = end;
      return bucket;
    });
  },

  /* The planner's choice: buckets, and the optimum. */
  plan(model) {
    const p = Planner.prepare(model), from = new Array(p.n + 1).fill(0);
    if (p.n === 0) {
      return {buckets: [], optimum: 0, optimumCount: 0, done: 0};
    }
    const finish = new Array(p.n + 1).fill(0);
    Planner.layer(p, finish, finish, from);
    let ends = [];
    for (let j = p.n; j > 0; j = from[j]) {
      ends.unshift(j);
    }
    const optimum = finish[p.n], optimumCount = ends.length;
    ends = p.alone ? ends : Planner.fewest(p, optimum * 1.001, optimumCount) || ends;
    const buckets = Planner.finish(p, ends);
    return {buckets, optimum, optimumCount, done: buckets[buckets.length - 1].finish, prepared: p};
  },

  fewest(p, limit, most) {
    let before = new Array(p.n + 1).fill(Infinity);
    before[0] = 0;
    const froms = [];
    for (let count = 0; count < most && before[p.n] > limit; count++) {
      const after = new Array(p.n + 1).fill(0), from = new Array(p.n + 1).fill(0);
      Planner.layer(p, before, after, from);
      for (let j = 0; j <= p.n; j++) {
        if (j === 0 || before[j] <= after[j]) {
          after[j] = before[j];
          from[j] = -1; /* one bucket less is as good */
        }
      }
      froms.push(from);
      before = after;
    }
    if (before[p.n] > limit) {
      return null; /* rounding: the optimum itself is kept */
    }
    const ends = [];
    for (let j = p.n, c = froms.length - 1; j > 0; c--) {
      if (froms[c][j] !== -1) {
        ends.unshift(j);
        j = froms[c][j];
      }
    }
    return ends;
  },

  /* A step, as weft explain counts it: communication beside compute, or between kernels. */
  step(planner, done, comm) {
    const tail = Math.max(0, planner.compute_ps - planner.ready_ps);
    return planner.inline ? Math.max(planner.compute_ps, planner.ready_ps) + comm
                          : Math.max(done, planner.ready_ps) + tail;
  },

  /* Times of the table of rank counts against those of the plan's count, at any size. */
  ratio(ranks, from, to) {
    const find = (count) => (ranks.table.find((row) => row.ranks === count) || {rows: []}).rows;
    const [a, b] = [find(from), find(to)];
    if (from === to || a.length === 0 || b.length === 0) {
      return () => 1;
    }
    const at = (rows, bytes) => {
      const x = Math.min(Math.max(Math.log2(Math.max(1, bytes)), Math.log2(rows[0][0])), Math.log2(rows[rows.length - 1][0]));
      let i = 0;
      while (i < rows.length - 2 && Math.log2(rows[i + 1][0]) <= x) {
        i++;
      }
      const [x0, x1] = [Math.log2(rows[i][0]), Math.log2(rows[i + 1][0])];
      const [y0, y1] = [Math.log2(Math.max(1, rows[i][1])), Math.log2(Math.max(1, rows[i + 1][1]))];
      return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    };
    return (bytes) => 2 ** (at(b, bytes) - at(a, bytes));
  },

  /* The answer for a rate, a number of ranks and a cap, from the data of a page. */
  whatIf(data, rate, ranks, cap) {
    const {planner} = data.plan, world = data.explain.world;
    const factor = ranks === world ? () => 1 : Planner.ratio(data.plan.ranks, world, ranks);
    const model = {gradients: planner.gradients, cost: planner.cost, alone: planner.alone, rate, factor, cap,
                   factorRises: ranks === world};
    const plan = Planner.plan(model);
    const comm = plan.buckets.reduce((sum, b) => sum + b.finish - b.start, 0);
    return {...plan, comm, step: Planner.step(planner, plan.done, comm),
            exposed: Math.max(0, planner.inline ? comm : plan.done - planner.ready_ps)};
  },
};
if (typeof module !== "undefined") {
  module.exports = Planner;
}
