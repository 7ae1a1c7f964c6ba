"""Style and script of the timeline page."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { --ink:#1d2733; --soft:#52606d; --faint:#8492a1; --line:#e3e8ee; --paper:#ffffff; }
* { box-sizing:border-box; }
body { margin:0; background:#f4f6f9; color:var(--ink);
  font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1600px; margin:0 auto; padding:20px 24px 32px; }
header h1 { margin:0; font-size:22px; font-weight:650; letter-spacing:-0.01em; }
header p { margin:2px 0 14px; color:var(--soft); }
.figures { display:grid; grid-template-columns:repeat(5,1fr); gap:12px; margin-bottom:14px; }
.figure, .card { background:var(--paper); border:1px solid var(--line); border-radius:8px; }
.figure { padding:10px 14px; }
.figure .label { color:var(--soft); font-size:12px; }
.figure .value { font-size:20px; font-weight:620; line-height:1.3;
  font-variant-numeric:tabular-nums; }
.figure .note { color:var(--faint); font-size:12px; }
.card { padding:12px 14px 14px; }
.bar { display:flex; justify-content:space-between; align-items:flex-start; gap:16px;
  margin-bottom:8px; }
#legend { display:flex; flex-wrap:wrap; gap:4px 6px; }
#legend button { display:flex; align-items:center; gap:6px; padding:2px 9px 2px 7px;
  border:1px solid var(--line); border-radius:999px; background:#fff; color:var(--ink);
  font:inherit; font-size:12.5px; cursor:pointer; }
#legend button.off { opacity:0.4; }
#legend i { width:10px; height:10px; border-radius:3px; }
.buttons { display:flex; align-items:center; gap:6px; white-space:nowrap; }
.buttons .hint { color:var(--faint); font-size:12px; margin-right:6px; }
.buttons button { min-width:30px; height:26px; border:1px solid var(--line); border-radius:6px;
  background:#fff; color:var(--ink); font:inherit; cursor:pointer; }
.buttons button:hover, #legend button:hover { background:#f0f3f7; }
canvas { display:block; width:100%; outline:none; }
#lanes { cursor:grab; }
#lanes.drag { cursor:grabbing; }
#map { margin-top:8px; cursor:pointer; }
.tables { display:grid; grid-template-columns:1fr 1fr; gap:12px; margin-top:14px; }
h2 { margin:0 0 6px; font-size:14px; font-weight:620; }
table { width:100%; border-collapse:collapse; font-variant-numeric:tabular-nums; }
th { color:var(--soft); font-weight:500; font-size:12px; }
th, td { padding:4px 6px; text-align:right; border-top:1px solid var(--line); }
tr:first-child th { border-top:0; }
th:first-child, td:first-child { text-align:left; }
#tip { position:fixed; display:none; z-index:9; max-width:620px; padding:10px 12px;
  background:#fff; border:1px solid #cbd3dc; border-radius:8px; pointer-events:none;
  box-shadow:0 6px 24px rgba(29,39,51,0.18); font-size:13px; }
#tip .op { font-weight:650; display:flex; justify-content:space-between; gap:24px; }
#tip .op i { display:inline-block; width:10px; height:10px; border-radius:3px; margin-right:7px; }
#tip code { display:block; margin:5px 0; color:var(--ink); white-space:pre-wrap;
  word-break:break-word; font:12px/1.45 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace; }
#tip .src { margin-top:6px; padding-top:6px; border-top:1px solid var(--line); color:var(--soft); }
#tip .src code { margin:2px 0 0; background:#f4f6f9; border-radius:4px; padding:3px 6px; }
#tip dl { display:grid; grid-template-columns:auto 1fr; gap:1px 12px; margin:4px 0 0; }
#tip dt { color:var(--soft); } #tip dd { margin:0; font-variant-numeric:tabular-nums; }
@media (max-width:900px) { .figures, .tables { grid-template-columns:1fr 1fr; }
  .buttons .hint { display:none; } }
"""

SCRIPT: Final = """
(() => {
const D = JSON.parse(document.getElementById("data").textContent), B = D.blocks;
const canvas = document.getElementById("lanes"), map = document.getElementById("map");
const tip = document.getElementById("tip");
const GUTTER = 172, AXIS = 30, STRIP = 20, ROW = 15, PAD = 8, MAP = 40, RIGHT = 10;
const total = Math.max(D.total, 1), count = B.start.length;
const FONT = "12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif";
const shown = D.kernels.map(() => true);
let from = 0, to = total, width = 0, hover = -1, wait = false;

let y = AXIS + STRIP;
for (const lane of D.lanes) {
  lane.y = y;
  lane.row = lane.rows > 1 ? ROW : 24;
  lane.height = lane.rows * lane.row + 2 * PAD;
  y += lane.height;
}
const height = y + 2;
const perLane = D.lanes.map(() => []);
for (let i = 0; i < count; i++) perLane[B.lane[i]].push(i);
for (const list of perLane) list.sort((a, b) => B.start[a] - B.start[b]);
const longest = perLane.map(list => list.reduce((m, i) => Math.max(m, B.time[i]), 0));

const kernelOf = i => D.calls[B.call[i]][0];
const plot = () => width - GUTTER - RIGHT;
const toX = t => GUTTER + (t - from) / (to - from) * plot();
const toTime = x => from + (x - GUTTER) / plot() * (to - from);

function fmt(ns, digits) {
  if (digits !== undefined) return (ns / 1e3).toFixed(digits) + " \\u00b5s";
  if (ns < 1e3) return ns.toFixed(ns < 10 ? 1 : 0) + " ns";
  return ns < 1e6 ? (ns / 1e3).toFixed(2) + " \\u00b5s" : (ns / 1e6).toFixed(3) + " ms";
}
function tickStep(span, ticks) {
  const raw = span / ticks, base = Math.pow(10, Math.floor(Math.log10(raw)));
  for (const f of [1, 2, 5, 10]) if (raw <= f * base) return f * base;
  return 10 * base;
}
function size(c, h) {
  const ratio = window.devicePixelRatio || 1;
  c.style.height = h + "px";
  c.width = Math.round(width * ratio); c.height = Math.round(h * ratio);
  const g = c.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.font = FONT; g.textBaseline = "middle";
  return g;
}
function draw() {
  wait = false;
  const g = size(canvas, height);
  g.fillStyle = "#fff"; g.fillRect(0, 0, width, height);
  const step = tickStep(to - from, Math.max(3, plot() / 110));
  const digits = Math.max(0, Math.min(4, 3 - Math.floor(Math.log10(step) + 1e-9)));
  g.textAlign = "center";
  for (let t = Math.ceil(from / step) * step; t <= to + 1e-6; t += step) {
    const x = Math.round(toX(t)) + 0.5;
    g.strokeStyle = "#e9edf2"; g.beginPath(); g.moveTo(x, AXIS - 6); g.lineTo(x, height);
    g.stroke();
    g.fillStyle = "#52606d"; g.fillText(fmt(t, digits), Math.min(x, width - 28), 12);
  }
  drawStrip(g);
  D.lanes.forEach((lane, n) => drawLane(g, lane, n));
  g.strokeStyle = "#d5dce4"; g.beginPath(); g.moveTo(GUTTER + 0.5, AXIS - 6);
  g.lineTo(GUTTER + 0.5, height); g.stroke();
  drawMap();
}
function fitted(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let n = Math.floor(room / 7);
  while (n > 2 && g.measureText(text.slice(0, n) + "\\u2026").width > room) n--;
  return n > 2 ? text.slice(0, n) + "\\u2026" : "";
}
function drawStrip(g) {
  g.textAlign = "left"; g.fillStyle = "#52606d"; g.fillText("kernel", 4, AXIS + 8);
  for (const key in D.calls) {
    const [kernel, start, end] = D.calls[key];
    if (end < from || start > to) continue;
    const x0 = Math.max(GUTTER, toX(start)), x1 = Math.min(width - RIGHT, toX(end));
    const w = Math.max(1, x1 - x0);
    g.globalAlpha = shown[kernel] ? 0.22 : 0.06;
    g.fillStyle = D.colours[kernel]; g.fillRect(x0, AXIS, w, 16);
    g.globalAlpha = 1;
    g.fillRect(x0, AXIS, Math.min(2, w), 16);
    const name = fitted(g, D.kernels[kernel], w - 12);
    if (name) { g.fillStyle = "#1d2733"; g.fillText(name, x0 + 7, AXIS + 8.5); }
  }
}
function drawLane(g, lane, n) {
  g.strokeStyle = "#e3e8ee"; g.beginPath(); g.moveTo(0, lane.y + 0.5);
  g.lineTo(width, lane.y + 0.5); g.stroke();
  const middle = lane.y + lane.height / 2;
  g.textAlign = "left"; g.fillStyle = "#1d2733";
  g.font = "600 " + FONT; g.fillText(lane.name, 4, middle - 7); g.font = FONT;
  g.fillStyle = "#6b7885"; g.font = "11px" + FONT.slice(4);
  if (!lane.count) g.fillText("idle", 4, middle + 8);
  else g.fillText((100 * lane.share).toFixed(1) + " % busy \\u00b7 " +
    lane.count.toLocaleString("en-US") + " instr", 4, middle + 8);
  g.font = FONT;
  const list = perLane[n];
  let low = 0, high = list.length;
  const first = from - longest[n];
  while (low < high) {
    const mid = (low + high) >> 1;
    if (B.start[list[mid]] < first) low = mid + 1; else high = mid;
  }
  const scale = plot() / (to - from);
  for (let k = low; k < list.length; k++) {
    const i = list[k];
    if (B.start[i] > to) break;
    const end = B.start[i] + B.time[i];
    if (end < from) continue;
    const x0 = Math.max(GUTTER, toX(B.start[i]));
    const x1 = Math.min(width - RIGHT, toX(end));
    let w = Math.max(0.75, x1 - x0);
    if (w > 4 && B.time[i] * scale > 4) w -= 1;
    const kernel = kernelOf(i), top = lane.y + PAD + B.row[i] * lane.row;
    const tall = lane.row - (lane.rows > 1 ? 2 : 0);
    g.globalAlpha = shown[kernel] ? 0.3 + 0.7 * B.busy[i] : 0.1;
    g.fillStyle = D.colours[kernel]; g.fillRect(x0, top, w, tall);
    g.globalAlpha = 1;
    if (i === hover) {
      g.strokeStyle = "#1d2733"; g.lineWidth = 2; g.strokeRect(x0, top, w, tall); g.lineWidth = 1;
    }
    const label = B.n[i] > 1 ? B.n[i] + " instructions" : D.texts[B.text[i]][0];
    if (shown[kernel] && w > 40 && tall > 10 && w > g.measureText(label).width + 10) {
      g.fillStyle = "#fff"; g.fillText(label, x0 + 5, top + tall / 2 + 0.5);
    }
  }
}
function drawMap() {
  const g = size(map, MAP), lanes = D.lanes.length, tall = (MAP - 8) / lanes;
  g.fillStyle = "#f4f6f9"; g.fillRect(GUTTER, 0, plot(), MAP);
  g.textAlign = "left"; g.fillStyle = "#52606d"; g.fillText("whole run", 4, MAP / 2);
  const scale = plot() / total;
  for (let i = 0; i < count; i++) {
    g.globalAlpha = shown[kernelOf(i)] ? 0.85 * B.busy[i] : 0.08;
    g.fillStyle = D.colours[kernelOf(i)];
    g.fillRect(GUTTER + B.start[i] * scale, 4 + B.lane[i] * tall,
      Math.max(0.5, B.time[i] * scale), Math.max(1, tall - 1));
  }
  g.globalAlpha = 1;
  const x0 = GUTTER + from * scale, x1 = GUTTER + to * scale;
  g.fillStyle = "rgba(29,39,51,0.10)";
  g.fillRect(GUTTER, 0, x0 - GUTTER, MAP); g.fillRect(x1, 0, GUTTER + plot() - x1, MAP);
  g.strokeStyle = "#52606d"; g.strokeRect(x0 + 0.5, 0.5, Math.max(2, x1 - x0 - 1), MAP - 1);
}
function redraw() { if (!wait) { wait = true; requestAnimationFrame(draw); } }
function view(a, b) {
  const span = Math.max(20, Math.min(total, b - a));
  from = Math.max(0, Math.min(total - span, a)); to = from + span; redraw();
}
function zoom(factor, at) {
  const center = at === undefined ? (from + to) / 2 : at;
  view(center - (center - from) * factor, center + (to - center) * factor);
}
function pick(px, py) {
  const n = D.lanes.findIndex(l => py >= l.y && py < l.y + l.height);
  if (n < 0 || px < GUTTER) return -1;
  const lane = D.lanes[n], row = Math.floor((py - lane.y - PAD) / lane.row), t = toTime(px);
  const slack = 2 * (to - from) / plot();
  let best = -1, gap = slack;
  for (const i of perLane[n]) {
    if (B.start[i] > t + slack) break;
    if (B.row[i] !== row) continue;
    const off = Math.max(B.start[i] - t, t - B.start[i] - B.time[i], 0);
    if (off <= gap) { best = i; gap = off; }
  }
  return best;
}
const esc = s => s.replace(/&/g, "&amp;").replace(/</g, "&lt;");
function show(i, px, py) {
  if (i < 0) { tip.style.display = "none"; return; }
  const [op, text, where, line] = D.texts[B.text[i]], kernel = kernelOf(i);
  const many = B.n[i] > 1;
  const title = many ? B.n[i] + " instructions, mostly " + op : op;
  const rows = [["starts at", fmt(B.start[i])], ["shapes", esc(D.shapes[B.shape[i]])],
    ["kernel", esc(D.kernels[kernel])]];
  if (many) rows.splice(1, 0, ["busy", (100 * B.busy[i]).toFixed(0) + " %"]);
  tip.innerHTML = '<div class="op"><span><i style="background:' + D.colours[kernel] + '"></i>' +
    title + "</span><span>" + fmt(B.time[i]) + "</span></div><code>" + esc(text) + "</code><dl>" +
    rows.map(([k, v]) => "<dt>" + k + "</dt><dd>" + v + "</dd>").join("") + "</dl>" +
    (where ? '<div class="src">' + esc(where) + (line ? "<code>" + esc(line) + "</code>" : "") +
      "</div>" : "");
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  const left = px + 16 + box.width > innerWidth ? px - box.width - 12 : px + 16;
  const top = py + 16 + box.height > innerHeight ? py - box.height - 12 : py + 16;
  tip.style.left = Math.max(6, left) + "px"; tip.style.top = Math.max(6, top) + "px";
}
let drag = null;
canvas.addEventListener("wheel", e => {
  e.preventDefault();
  const span = to - from;
  if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    const move = (e.deltaX || e.deltaY) / plot() * span;
    view(from + move, to + move);
  } else zoom(Math.exp(e.deltaY * 0.0015), toTime(e.offsetX));
}, { passive: false });
canvas.addEventListener("pointerdown", e => {
  drag = { x: e.clientX, from, to }; canvas.setPointerCapture(e.pointerId);
  canvas.classList.add("drag"); tip.style.display = "none";
});
canvas.addEventListener("pointermove", e => {
  if (drag) {
    const move = (drag.x - e.clientX) / plot() * (drag.to - drag.from);
    view(drag.from + move, drag.to + move);
    return;
  }
  const i = pick(e.offsetX, e.offsetY);
  if (i !== hover) { hover = i; redraw(); }
  show(i, e.clientX, e.clientY);
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => {
  drag = null; canvas.classList.remove("drag");
});
canvas.addEventListener("pointerleave", () => { hover = -1; show(-1); redraw(); });
canvas.addEventListener("dblclick", () => view(0, total));
function seek(e) {
  const t = (e.offsetX - GUTTER) / plot() * total, half = (to - from) / 2;
  view(t - half, t + half);
}
map.addEventListener("pointerdown", e => { map.setPointerCapture(e.pointerId); seek(e); });
map.addEventListener("pointermove", e => { if (e.buttons) seek(e); });
document.getElementById("in").onclick = () => zoom(0.5);
document.getElementById("out").onclick = () => zoom(2);
document.getElementById("fit").onclick = () => view(0, total);
addEventListener("keydown", e => {
  const move = 0.2 * (to - from);
  if (e.key === "+" || e.key === "=") zoom(0.5);
  else if (e.key === "-") zoom(2);
  else if (e.key === "0") view(0, total);
  else if (e.key === "ArrowLeft") view(from - move, to - move);
  else if (e.key === "ArrowRight") view(from + move, to + move);
});
D.kernels.forEach((name, k) => {
  const button = document.createElement("button");
  button.innerHTML = '<i style="background:' + D.colours[k] + '"></i>' + esc(name);
  button.title = "show or dim this kernel";
  button.onclick = () => {
    shown[k] = !shown[k]; button.classList.toggle("off", !shown[k]); redraw();
  };
  document.getElementById("legend").append(button);
});
function resize() { width = canvas.clientWidth; draw(); }
addEventListener("resize", resize);
resize();
const at = new URLSearchParams(location.hash.slice(1));
if (at.has("from")) view(+at.get("from"), +at.get("to"));
if (at.has("x")) {
  draw();
  const box = canvas.getBoundingClientRect(), px = +at.get("x"), py = +at.get("y");
  hover = pick(px, py); draw(); show(hover, box.left + px, box.top + py);
}
})();
"""
