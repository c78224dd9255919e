// Charts as SVG, drawn for the width of their container in CSS pixels, so that texts have the same size on every screen.

import { NONE, asArray, el, numbered, stateText, svg } from './format.js';

const FONT_SIZE = 11; // as in style.css
const GAP = 8; // minimum distance between two labels
const ruler = document.createElement('canvas').getContext('2d');

function textWidth(text) {
  ruler.font = `${FONT_SIZE}px system-ui, sans-serif`;
  return ruler.measureText(text).width;
}

const shortTime = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });

/** Nodes by state over time, stacked. */
export function statesChart(timeseries, width) {
  const counts = timeseries.counts;
  if (counts.length < 2) return el('p', { class: 'quiet' }, 'Not enough data for a chart yet: the first point follows within 15 s.');
  const [height, bottom] = [220, 20];
  const [from, to] = [counts[0].at, counts[counts.length - 1].at];
  const totals = counts.map((count) => count.nodes.reduce((sum, number) => sum + number, 0));
  const max = Math.max(1, ...totals);
  const left = Math.max(20, textWidth(max.toLocaleString()) + 10);
  const x = (at) => left + (width - left) * (at - from) / Math.max(1, to - from);
  const y = (number) => (height - bottom) * (1 - number / max) + 4;
  const below = counts.map(() => 0);
  const areas = [];
  const shownStates = [];
  timeseries.states.forEach((name, index) => {
    if (!counts.some((count) => count.nodes[index])) return;
    shownStates.push(name);
    const lower = counts.map((count, i) => `${x(count.at).toFixed(1)},${y(below[i]).toFixed(1)}`);
    counts.forEach((count, i) => { below[i] += count.nodes[index]; });
    const upper = counts.map((count, i) => `${x(count.at).toFixed(1)},${y(below[i]).toFixed(1)}`);
    areas.push(svg('polygon', { class: `area tone-${name}`, points: [...upper, ...lower.reverse()].join(' ') }, svg('title', {}, name)));
  });
  const last = counts[counts.length - 1];
  const caption = timeseries.states.map((name, i) => [name, last.nodes[i]]).filter(([, number]) => number).map(([name, number]) => `${number} ${name}`).join(', ');
  return el('figure', {},
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Nodes by state since ${shortTime(from)}; now ${caption || 'none'}` },
      svg('line', { class: 'axis', x1: left, x2: width, y1: y(0), y2: y(0) }), svg('line', { class: 'axis', x1: left, x2: width, y1: y(max), y2: y(max) }),
      areas, svg('text', { x: left - 6, y: y(max) + 8, 'text-anchor': 'end' }, max.toLocaleString()), svg('text', { x: left - 6, y: y(0), 'text-anchor': 'end' }, '0'),
      svg('text', { x: left, y: height - 2 }, shortTime(from)), svg('text', { x: width, y: height - 2, 'text-anchor': 'end' }, shortTime(to))),
    el('div', { class: 'legend' }, shownStates.map(stateText)));
}

/** A bound of a histogram, with three digits at most. Units change at two minutes, hours and days: 70 s, not 1.17 min. */
export function boundText(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const [divisor, unit] = seconds < 1 ? [0.001, 'ms'] : seconds < 120 ? [1, 's'] : seconds < 7200 ? [60, 'min'] : seconds < 172800 ? [3600, 'h'] : [86400, 'd'];
  return `${Number((seconds / divisor).toPrecision(3))} ${unit}`;
}

/** A number above a bar, with at most four characters. */
function countText(count) {
  if (count < 10000) return String(count);
  const [divisor, unit] = count < 1e6 ? [1e3, 'k'] : count < 1e9 ? [1e6, 'M'] : [1e9, 'G'];
  return `${Math.floor(count / divisor)}${unit}`;
}

/**
 * Labels of bounds that do not overlap: all, or every second, third … one, counted from the last bound. A bound is the right
 * edge of its bar.
 */
function boundLabels(bounds, barWidth, width) {
  const labels = bounds.map((bound, i) => {
    const [text, edge] = [boundText(bound), (i + 1) * barWidth];
    const half = textWidth(text) / 2;
    const x = Math.min(edge, width - half);
    return { text, edge, x, from: x - half, to: x + half };
  });
  for (let step = 1; step <= labels.length; step += 1) {
    const shown = labels.filter((label, i) => (labels.length - 1 - i) % step === 0 && label.from >= 0);
    if (shown.every((label, i) => i === 0 || shown[i - 1].to + GAP <= label.from)) return shown;
  }
  return labels.slice(-1);
}

const overlaps = (a, b) => a.from < b.to && b.from < a.to && a.top < b.bottom && b.top < a.bottom;

/** Numbers above the bars, the largest first. A number that would overlap another one or a bar is left out. */
function countLabels(counts, bars, width) {
  const placed = [];
  const byCount = counts.map((count, i) => [count, bars[i]]).filter(([count]) => count > 0).sort(([a], [b]) => b - a);
  for (const [count, bar] of byCount) {
    const text = countText(count);
    const half = textWidth(text) / 2;
    const x = Math.min(Math.max((bar.from + bar.to) / 2, half), width - half);
    const label = { text, x, y: bar.top - 3, from: x - half, to: x + half, top: bar.top - 3 - FONT_SIZE, bottom: bar.top - 1 };
    const padded = { ...label, from: label.from - 2, to: label.to + 2 };
    if (!placed.some((other) => overlaps(padded, other)) && !bars.some((other) => other !== bar && overlaps(label, other))) placed.push(label);
  }
  return placed;
}

/** Histogram of durations. The last count is of the durations above all bounds. */
export function durationsChart(distribution, what, width) {
  const [counts, bounds] = [asArray(distribution && distribution.counts), asArray(distribution && distribution.bounds)];
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return el('p', { class: 'quiet' }, `No ${what} since this launcher started.`);
  const [height, bottom, top] = [200, 24, 18];
  const [base, barWidth, maxCount] = [height - bottom, width / counts.length, Math.max(...counts)];
  const bars = counts.map((count, i) => {
    // A small count is visible beside a large one.
    const barHeight = count ? Math.max(2, (base - top) * count / maxCount) : 0;
    return { from: i * barWidth + 1, to: (i + 1) * barWidth - 1, top: base - barHeight, bottom: base };
  });
  const range = (i) => (i < bounds.length ? `${i ? `more than ${boundText(bounds[i - 1])}, ` : ''}at most ${boundText(bounds[i])}` : `more than ${boundText(bounds[i - 1])}`);
  const columns = bars.map((bar, i) => svg('rect', { class: 'column', x: bar.from.toFixed(1), y: bar.top.toFixed(1), width: Math.max(1, bar.to - bar.from).toFixed(1), height: (base - bar.top).toFixed(1) },
    svg('title', {}, `${range(i)}: ${counts[i].toLocaleString()}`)));
  const labels = boundLabels(bounds, barWidth, width);
  const ticks = labels.map((label) => svg('line', { class: 'axis', x1: label.edge.toFixed(1), x2: label.edge.toFixed(1), y1: base, y2: base + 4 }));
  const texts = [...labels.map((label) => ({ ...label, y: base + 16 })), ...countLabels(counts, bars, width)]
    .map(({ text, x, y }) => svg('text', { x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': 'middle' }, text));
  let cumulative = 0;
  const medianIndex = counts.findIndex((count) => { cumulative += count; return cumulative * 2 >= total; });
  const median = medianIndex < bounds.length ? `within ${boundText(bounds[medianIndex])}` : `in more than ${boundText(bounds[medianIndex - 1])}`;
  const caption = `${numbered(total, what)}, ${total === 1 ? '' : 'half of them '}${median}`;
  return el('figure', {},
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': caption }, columns,
      svg('line', { class: 'axis', x1: 0, x2: width, y1: base, y2: base }), ticks, texts),
    el('figcaption', { class: 'quiet' }, caption));
}
