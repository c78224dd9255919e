// Elements, and texts of durations, times and numbers. Values from records are inserted as text, never as markup.

export function el(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'class') element.className = value;
    else if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

export function svg(name, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, String(value));
  for (const child of children.flat()) element.append(child);
  return element;
}

export const stateText = (name) => el('span', { class: `state tone-${name}` }, name);

export const NONE = '–'; // for unknown values
export const asArray = (value) => (Array.isArray(value) ? value : []);
export const asObject = (value) => (value !== null && typeof value === 'object' ? value : {});
export const textOrDash = (value) => (value === null || value === undefined || value === '' ? NONE : String(value));

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const s = Math.max(0, seconds);
  if (s < 1) return `${s < 0.01 ? Math.round(s * 10000) / 10 : Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? Math.round(s * 10) / 10 : Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** The date of a timestamp in a record; null if it is missing or out of range. */
export function dateOf(at) {
  const date = new Date(Number(at) * 1000);
  return at === null || Number.isNaN(date.getTime()) ? null : date;
}

export function numberText(value) {
  if (!Number.isFinite(value)) return NONE;
  return (Math.abs(value) >= 100 ? Math.round(value) : Math.round(value * 100) / 100).toLocaleString();
}

/** 1 node, 2 nodes. */
export const numbered = (count, name) => `${count.toLocaleString()} ${count === 1 ? name.slice(0, -1) : name}`;
