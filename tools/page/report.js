/* SPDX-License-Identifier: Apache-2.0
 * weft report: a training run, from tools/train/history.c. Anything may be missing in a file that
 * another version has written. */
"use strict";
const finite = (values) => values.filter((value) => Number.isFinite(value));
const mean = (values) => finite(values).reduce((sum, value) => sum + value, 0) / finite(values).length; /* of none: NaN */
const median = (values) => {
  const sorted = finite(values).sort((a, b) => a - b), middle = sorted.length / 2;
  return sorted.length === 0 ? NaN : (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2;
};
const ms = (value) => time(value * 1e3);
const least = (values) => finite(values).reduce((a, b) => Math.min(a, b), Infinity);
const largest = (values) => finite(values).reduce((a, b) => Math.max(a, b), -Infinity);

function read(data) {
  const steps = data.steps.filter(Number.isFinite), report = data.report;
  const column = (rank, name) => (Array.isArray(rank[name]) ? rank[name] : []);
  const ranks = data.ranks.filter((rank) => rank && typeof rank === "object");
  /* By point over the ranks. */
  const over = (name, fold) => steps.map((step, i) => [step, fold(ranks.map((rank) => column(rank, name)[i]))]).filter((p) => Number.isFinite(p[1]));
  return {data, report, steps, ranks, over, first: report.first_step || 0,
          hosts: Array.isArray(report.hosts) ? report.hosts : [], links: Array.isArray(report.links) ? report.links : [],
          recoveries: Array.isArray(report.recoveries) ? report.recoveries : []};
}

function tiles(m) {
  const r = m.report, noun = m.data.noun || "sample";
  return el("div", {class: "tiles"},
    tile("Steps", `${r.steps ?? "–"}`, `${count(r.world ?? m.ranks.length, "rank")}, batch ${m.data.global_batch ?? "–"} of all ranks`),
    tile("Loss", Number.isFinite(r.loss_last) ? r.loss_last.toFixed(4) : "–", Number.isFinite(r.loss_first) ? `from ${r.loss_first.toFixed(4)}` : ""),
    Number.isFinite(r.test_accuracy) ? tile("Test accuracy", `${(100 * r.test_accuracy).toFixed(2)} %`, "after the last step") : null,
    tile("Step", ms(r.step_ms_p50), `median; mean ${ms(r.step_ms_mean)}`),
    tile("Rate", Number.isFinite(r.images_per_s) ? `${Math.round(r.images_per_s).toLocaleString("en")}/s` : "–", `${noun}s of all ranks`),
    tile("Exposed communication", ms(r.exposed_comm_ms_p50), `of ${ms(r.comm_ms_p50)}; ${r.progress === "inline" ? "between kernels" : "beside compute"}`),
    tile("Peak memory", Number.isFinite(r.rss_bytes) ? bytes(r.rss_bytes) : "–", "of the largest rank"));
}

function lossCard(m) {
  const line = m.over("loss", mean);
  if (line.length === 0) {
    return null;
  }
  const band = m.over("loss", largest), low = m.over("loss", least), wide = Math.max(1, Math.round(line.length / 25));
  const smooth = line.map(([step], i) => [step, median(line.slice(Math.max(0, i - wide), i + wide + 1).map((p) => p[1]))]);
  const all = [...band, ...low].map((p) => p[1]), floor = least(all), roof = largest(all), room = (roof - floor) * 0.05 || 0.1;
  return card("loss", "Loss", "The mean over ranks at each step, its running median, and the span from the least to the largest rank.",
    el("div", {class: "bar"}, legend(["mean of ranks", "var(--accent)"], ["running median", "var(--warn)"], ["least to largest rank", "color-mix(in srgb, var(--accent) 25%, transparent)"])),
    drawn((width) => chart({width, height: 280, label: "Loss by step", x: {low: m.first, text: (x) => `${x}`},
      y: {low: Math.max(0, floor - room), high: roof + room, text: (y) => `${Number(y.toPrecision(6))}`},
      series: [{points: band, area: true, paint: "var(--accent)", opacity: 0.25, base: [...low].reverse()},
        {points: line, paint: "var(--accent)", wide: line.length > 400 ? 0.8 : 1.5}, {points: smooth, paint: "var(--warn)", wide: 2}]})));
}

function timesCard(m) {
  const line = m.over("ms", median), most = m.over("ms_most", largest);
  if (line.length === 0) {
    return null;
  }
  const sorted = line.map((p) => p[1]).sort((a, b) => a - b), high = Math.max(sorted[Math.floor(sorted.length * 0.98)] * 1.6, sorted[0] * 1.1);
  const clip = (points) => points.map(([x, y]) => [x, Math.min(y, high)]), cut = [...line, ...most].filter((p) => p[1] > high).length;
  return card("times", "Step times", `Of the median rank, and the longest step of any rank${m.report.steps > m.steps.length ? `; each point sums up ${digits(m.report.steps / m.steps.length)} steps` : ""}.` +
    (cut > 0 ? ` ${count(cut, "value")} above ${ms(high)} are drawn at the edge; the longest step took ${ms(largest(most.map((p) => p[1])))}.` : ""),
  el("div", {class: "bar"}, legend(["median rank", "var(--accent)"], ["longest", "var(--warn)"])),
  drawn((width) => chart({width, height: 220, label: "Step times", x: {low: m.first, text: (x) => `${x}`}, y: {high, text: ms},
    series: [{points: clip(most), paint: "var(--warn)", wide: 0.9}, {points: clip(line), paint: "var(--accent)", wide: 1.5}],
    marks: Number.isFinite(m.report.step_ms_p50) && m.report.step_ms_p50 < high ? [{y: m.report.step_ms_p50, text: `median ${ms(m.report.step_ms_p50)}`}] : []})));
}

/* Ranks wait for each other in every step: a slow one shows in its compute, the others in exposed communication. */
function ranksCard(m) {
  if (m.ranks.length === 0) {
    return null;
  }
  const compute = m.ranks.map((rank) => rank.compute_ms), middle = median(compute), most = largest(compute);
  const span = largest(m.ranks.map((rank) => (rank.compute_ms || 0) + (rank.exposed_ms || 0))) || 1;
  const names = new Map(m.hosts.flatMap((host, h) => (Array.isArray(host.ranks) ? host.ranks : []).map((rank) => [rank, host.name || `host ${h}`])));
  const shown = m.ranks.length > 512 ? [...m.ranks].sort((a, b) => b.compute_ms - a.compute_ms).slice(0, 512) : m.ranks;
  const bar = (rank) => {
    const part = (value, paint) => el("span", {style: `display:inline-block;height:12px;width:${Math.max(0, 100 * (value || 0) / span).toFixed(2)}%;background:${paint}`});
    return el("div", {style: "min-width:160px;white-space:nowrap;font-size:0"}, part(rank.compute_ms, "var(--accent)"), part(rank.exposed_ms, "var(--warn)"));
  };
  const skew = m.steps.map((step, i) => {
    const values = finite(m.ranks.map((rank) => (rank.ms || [])[i]));
    return [step, values.length > 0 ? largest(values) - least(values) : NaN];
  }).filter((p) => Number.isFinite(p[1]));
  return card("ranks", "Skew of ranks",
    `Ranks wait for each other in every step, so a slow one has more compute, and the others more exposed communication. The slowest rank computes ${percent(most - middle, middle)} longer than the median${shown.length < m.ranks.length ? "; the 512 slowest are listed" : ""}.`,
    el("div", {class: "bar"}, legend(["compute", "var(--accent)"], ["exposed communication", "var(--warn)"])),
    table([["rank", true, (rank) => `${rank.rank ?? ""}`], ["host", false, (rank) => names.get(rank.rank) || `host ${rank.host ?? 0}`, "name"],
      ["compute", true, (rank) => ms(rank.compute_ms)], ["communication", true, (rank) => ms(rank.comm_ms)], ["exposed", true, (rank) => ms(rank.exposed_ms)],
      ["against the median", true, (rank) => el("span", {class: rank.compute_ms > middle * 1.1 ? "up" : ""}, Number.isFinite(rank.compute_ms) && middle > 0 ? `${rank.compute_ms >= middle ? "+" : "−"}${Math.abs(100 * (rank.compute_ms / middle - 1)).toFixed(1)} %` : "–")],
      ["peak memory", true, (rank) => (Number.isFinite(rank.rss_bytes) ? bytes(rank.rss_bytes) : "–")], ["medians of a step", false, bar]], shown, 360),
    skew.length > 1 && m.ranks.length > 1 ? [el("p", {class: "about", style: "margin-top:14px"}, "Difference between the longest and the shortest rank's step, over the run:"),
      drawn((width) => chart({width, height: 150, label: "Skew by step", x: {low: m.first, text: (x) => `${x}`}, y: {text: ms},
        series: [{points: skew, paint: "var(--accent)", wide: 1.2}]}))] : null);
}

function linksCard(m) {
  if (m.links.length === 0) {
    return card("links", "Links", `${m.hosts.length > 1 ? "No traffic between hosts was counted." : "All ranks were on one host."} Transports: ${(Array.isArray(m.report.transports) ? m.report.transports : []).join(", ") || "unknown"}.`);
  }
  const most = largest(m.links.map((link) => link.mb_per_s)) || 1;
  return card("links", "Links", "Between pairs of hosts, the slower direction while it was busy. Slow: less than half of the median of the others.",
    table([["hosts", false, (link) => (Array.isArray(link.hosts) ? link.hosts.join(" – ") : ""), "name"], ["sent", true, (link) => bytes(link.bytes || 0)],
      ["rate", true, (link) => (Number.isFinite(link.mb_per_s) ? `${digits(link.mb_per_s)} MB/s` : "–")],
      ["", false, (link) => !Number.isFinite(link.mb_per_s) ? "" : el("div", {style: `height:12px;min-width:2px;width:${(100 * link.mb_per_s / most).toFixed(1)}%;background:${link.slow ? "var(--warn)" : "var(--accent)"}`})],
      ["", false, (link) => (link.slow ? el("span", {class: "up"}, "slow") : "")]], m.links, 360));
}

function recoveriesCard(m) {
  return m.recoveries.length === 0 ? null : card("recoveries", "Changes of the world", "Ranks that died or joined, and how long training paused.",
    table([["after step", true, (r) => `${r.step ?? ""}`], ["died", false, (r) => r.dead || "–"], ["joined", false, (r) => r.joined || "–"],
      ["ranks then", true, (r) => `${r.world ?? ""}`], ["pause", true, (r) => time((r.seconds || 0) * 1e6)]], m.recoveries, 300));
}

function reportPage(data) {
  const m = read(data), r = m.report;
  page({
    title: data.model || "training run",
    sub: `training run, ${count(r.world ?? m.ranks.length, "rank")} on ${count(Math.max(1, m.hosts.length), "host")}${r.launcher && r.launcher !== "arguments" ? `, started by ${r.launcher}` : ""}` +
      (data.complete === false ? "; it had not ended when this was written, so all values are those of rank 0" : ""),
    sections: [() => tiles(m), () => lossCard(m), () => timesCard(m), () => ranksCard(m), () => linksCard(m), () => recoveriesCard(m)],
    foot: `Written by weft report.${typeof r.param_digest === "string" && r.param_digest !== "" ? ` Weights ${r.param_digest.slice(0, 16)}.` : ""}`,
  });
}
reportPage(JSON.parse(document.getElementById("data").textContent));
