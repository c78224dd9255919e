// The live page: one copy of the state, patched by server-sent events; the view in front is drawn anew when it changed.
// Whatever comes from records goes in as text, never as markup.

const STATES = ['init', 'building', 'testing', 'ready', 'in-use', 'used', 'hold', 'deleting', 'failed', 'aborted', 'deleted'];
const PAGE = 100; // rows in front at a time
const OLDEST = 10; // requests on the overview
const MOST_EARLY = 1000; // patches
const LONGEST_LOAD = 60000; // in milliseconds; what takes longer hangs
const NODE = { id: 0, state: 1, since: 2, provider: 3, pool: 4, labels: 5, address: 6, locked: 7, request: 8, comment: 9, zone: 10, host: 11 };
const REQUEST = { id: 0, state: 1, since: 2, requestor: 3, labels: 4, nodes: 5, declined: 6, event: 7, priority: 8, created: 9 };

const state = { nodes: new Map(), requests: new Map(), images: [], revision: -1, connected: false, loaded: false, figures: null, plots: null };
const trouble = { stream: false, load: false };
const main = document.getElementById('main');
let skew = 0; // the server's clock less ours, in seconds
let view = null;
let loading = false; // while it does, what was loaded before stays in front
let early = []; // patches that came before the state they belong to
let loads = 0; // how often the state was asked for: only the newest answer counts

// --- building blocks ---------------------------------------------------------------------------------------------------

function el(name, properties, ...children) {
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

function svg(name, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, String(value));
  for (const child of children.flat()) element.append(child);
  return element;
}

const now = () => Date.now() / 1000 + skew;
const link = (kind, id) => el('a', { href: `#/${kind}/${encodeURIComponent(id)}`, class: 'mono' }, id);
const stateText = (name) => el('span', { class: `state tone-${name}` }, name);

const NONE = '–'; // for what is not told
const many = (value) => (Array.isArray(value) ? value : []);
const fields = (value) => (value !== null && typeof value === 'object' ? value : {});
const word = (value) => (value === null || value === undefined || value === '' ? NONE : String(value));

function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? Math.round(s * 10) / 10 : Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** The date that a record names; null where there is no such date, whatever number stands there. */
function dateOf(at) {
  const date = new Date(Number(at) * 1000);
  return at === null || Number.isNaN(date.getTime()) ? null : date;
}

/** An age that goes on: whole seconds, redrawn by `tick`. */
function ageText(since) {
  const date = dateOf(since);
  if (!date) return el('span', { class: 'quiet' }, '?');
  const whole = Math.floor(Number(since));
  return el('time', { 'data-since': whole, datetime: date.toISOString() }, duration(Math.floor(now() - whole)));
}

function clockText(at) {
  const date = dateOf(at);
  if (!date) return el('span', { class: 'quiet' }, at === null || at === undefined ? '?' : String(at));
  return el('time', { datetime: date.toISOString(), title: date.toISOString() }, date.toLocaleString());
}

function numberText(value) {
  if (!Number.isFinite(value)) return NONE;
  return (Math.abs(value) >= 100 ? Math.round(value) : Math.round(value * 100) / 100).toLocaleString();
}

/** 1 node, 2 nodes. */
const numbered = (count, name) => `${count.toLocaleString()} ${count === 1 ? name.slice(0, -1) : name}`;

/** What `make` makes, or a word in its place: one odd record hides nothing but itself. */
function orWord(what, make) {
  try {
    return make();
  } catch (error) {
    return el('p', { class: 'bad' }, `${what} cannot be shown: ${error.message}`);
  }
}

/** What `make` makes, or something else where a record is too odd for it. */
function attempt(make, otherwise) {
  try {
    return make();
  } catch {
    return otherwise;
  }
}

function panel(title, ...children) {
  return el('section', { class: 'panel' }, el('h2', {}, title), ...children);
}

/** A panel of its own fate: what cannot be shown is said in its place. */
function panelOf(title, make) {
  const children = orWord(title, make);
  return panel(title, ...(Array.isArray(children) ? children : [children]));
}

/**
 * Puts these children in, but for those that are there already: what is selected or has the focus stays, also in a part that is
 * new, if it leads to the same place as before.
 */
function renew(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const made = children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const old = [...element.childNodes];
  made.forEach((child, index) => {
    if (index >= old.length) element.append(child);
    else if (!old[index].isEqualNode(child)) old[index].replaceWith(child);
  });
  old.slice(made.length).forEach((child) => child.remove());
  if (!focused || focused.isConnected) return;
  const href = focused.getAttribute('href');
  const again = href && [...element.querySelectorAll('a')].find((other) => other.getAttribute('href') === href);
  if (again) again.focus({ preventScroll: true });
}

// --- tables --------------------------------------------------------------------------------------------------------------

/** A list with search, filters, sorting and pages. Rows that stay are kept, so focus and selection stay too. */
class List {
  constructor({ key, columns, rows, filters, empty, sort }) {
    Object.assign(this, { key, columns, rows, filters, empty });
    this.page = 0;
    this.sort = sort || { column: 0, down: false };
    this.kept = new Map();
    const query = new URLSearchParams(location.hash.split('?')[1] || '');
    this.search = el('input', { type: 'search', value: query.get('q') || '', placeholder: 'any text', oninput: () => this.again() });
    this.selects = filters.map((filter) => {
      const select = el('select', { onchange: () => this.again() });
      select.dataset.wanted = query.get(filter.name) || '';
      return select;
    });
    this.summary = el('p', { class: 'quiet', 'aria-live': 'off' });
    this.heads = columns.map((column, index) => el('th', { scope: 'col', class: column.kind },
      el('button', { type: 'button', onclick: () => this.sortBy(index) }, column.title)));
    this.body = el('tbody');
    this.back = el('button', { type: 'button', onclick: () => { this.page -= 1; this.draw(); } }, 'Previous');
    this.next = el('button', { type: 'button', onclick: () => { this.page += 1; this.draw(); } }, 'Next');
    this.where = el('span', { class: 'quiet' });
    this.element = el('section', { class: 'panel' },
      el('div', { class: 'filters' }, el('label', {}, 'Search', this.search),
        filters.map((filter, index) => el('label', {}, filter.title, this.selects[index]))),
      this.summary,
      el('div', { class: 'table' }, el('table', { class: 'stack' }, el('thead', {}, el('tr', {}, this.heads)), this.body)),
      el('div', { class: 'pager' }, this.back, this.next, this.where));
  }

  again() {
    // Told to who listens because they asked for it, and not with every node that comes and goes.
    this.summary.setAttribute('aria-live', 'polite');
    setTimeout(() => this.summary.setAttribute('aria-live', 'off'), 2000);
    this.page = 0;
    const query = new URLSearchParams();
    if (this.search.value) query.set('q', this.search.value);
    this.selects.forEach((select, index) => { if (select.value) query.set(this.filters[index].name, select.value); });
    const base = location.hash.split('?')[0] || '#/';
    history.replaceState(null, '', query.size ? `${base}?${query}` : base);
    this.draw();
  }

  sortBy(column) {
    this.sort = { column, down: this.sort.column === column ? !this.sort.down : false };
    this.draw();
  }

  /** What can be chosen; looked up seldom, because all rows are looked at. */
  options() {
    if (performance.now() - (this.optionsAt ?? -Infinity) < 5000) return;
    this.optionsAt = performance.now();
    this.selects.forEach((select, index) => {
      const values = [...new Set(this.filters[index].values())].sort();
      const text = values.join('\n');
      if (select.dataset.values === text) return;
      const wanted = select.value || select.dataset.wanted;
      select.dataset.values = text;
      select.replaceChildren(el('option', { value: '' }, 'all'), ...values.map((value) => el('option', { value }, value)));
      select.value = values.includes(wanted) ? wanted : '';
    });
  }

  draw() {
    this.options();
    const text = this.search.value.trim().toLowerCase();
    const chosen = this.selects.map((select) => select.value);
    const all = this.rows();
    const found = this.sorted(all.filter((row) => this.filters.every((filter, index) => !chosen[index] || filter.has(row, chosen[index]))
      && (!text || row.some((cell) => cell !== null && String(cell).toLowerCase().includes(text)))));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const front = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.summary.textContent = all.length === 0 ? this.empty
      : found.length === all.length ? numbered(all.length, this.key) : `${found.length.toLocaleString()} of ${numbered(all.length, this.key)}`;
    this.where.textContent = pages > 1 ? `page ${this.page + 1} of ${pages}` : '';
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.back.hidden = this.next.hidden = pages === 1;
    this.heads.forEach((head, index) => head.setAttribute('aria-sort',
      index !== this.sort.column ? 'none' : this.sort.down ? 'descending' : 'ascending'));
    this.place(front);
  }

  sorted(rows) {
    // Rows come by their ids, and new ones have higher ids.
    if (this.sort.column === 0 && !this.sort.down) return rows;
    const { value } = this.columns[this.sort.column];
    const order = this.sort.down ? -1 : 1;
    const keyed = rows.map((row) => [attempt(() => value(row), ''), row]);
    keyed.sort(([x, a], [y, b]) => order * (x < y ? -1 : x > y ? 1 : a[0] < b[0] ? -1 : 1));
    return keyed.map(([, row]) => row);
  }

  place(front) {
    const kept = new Map();
    let at = this.body.firstChild;
    for (const row of front) {
      let line = this.kept.get(row[0]);
      const text = JSON.stringify(row) + (this.extra ? attempt(() => this.extra(row), '') : '');
      if (!line || line.text !== text) {
        const cells = this.columns.map((column) => el('td', { class: column.kind, 'data-label': column.title }, orWord(row[0], () => column.cell(row))));
        if (line) {
          renew(line.element, cells);
        } else {
          line = { element: el('tr', {}, cells) };
        }
        line.text = text;
      }
      kept.set(row[0], line);
      if (line.element !== at) this.body.insertBefore(line.element, at);
      else at = at.nextSibling;
    }
    for (const [id, line] of this.kept) if (!kept.has(id)) line.element.remove();
    this.kept = kept;
  }
}

// --- plots ---------------------------------------------------------------------------------------------------------------

const shortTime = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });

/** Nodes by state over time, one upon the other. */
function statesPlot(plots) {
  const counts = plots.counts;
  if (counts.length < 2) return el('p', { class: 'quiet' }, 'There is a plot as soon as there is some time to show.');
  const [width, height, left, bottom] = [640, 220, 40, 20];
  const [from, to] = [counts[0].at, counts[counts.length - 1].at];
  const totals = counts.map((count) => count.nodes.reduce((sum, number) => sum + number, 0));
  const most = Math.max(1, ...totals);
  const x = (at) => left + (width - left) * (at - from) / Math.max(1, to - from);
  const y = (number) => (height - bottom) * (1 - number / most) + 4;
  const below = counts.map(() => 0);
  const areas = [];
  const seen = [];
  plots.states.forEach((name, index) => {
    if (!counts.some((count) => count.nodes[index])) return;
    seen.push(name);
    const lower = counts.map((count, i) => `${x(count.at).toFixed(1)},${y(below[i]).toFixed(1)}`);
    counts.forEach((count, i) => { below[i] += count.nodes[index]; });
    const upper = counts.map((count, i) => `${x(count.at).toFixed(1)},${y(below[i]).toFixed(1)}`);
    areas.push(svg('polygon', { class: `area tone-${name}`, points: [...upper, ...lower.reverse()].join(' ') }, svg('title', {}, name)));
  });
  const last = counts[counts.length - 1];
  const said = plots.states.map((name, i) => [name, last.nodes[i]]).filter(([, number]) => number).map(([name, number]) => `${number} ${name}`).join(', ');
  return el('figure', { style: null },
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Nodes by state since ${shortTime(from)}; now ${said || 'none'}` },
      svg('line', { class: 'axis', x1: left, x2: width, y1: y(0), y2: y(0) }), svg('line', { class: 'axis', x1: left, x2: width, y1: y(most), y2: y(most) }),
      areas, svg('text', { x: left - 6, y: y(most) + 8, 'text-anchor': 'end' }, String(most)), svg('text', { x: left - 6, y: y(0), 'text-anchor': 'end' }, '0'),
      svg('text', { x: left, y: height - 2 }, shortTime(from)), svg('text', { x: width, y: height - 2, 'text-anchor': 'end' }, shortTime(to))),
    el('div', { class: 'legend' }, seen.map(stateText)));
}

/** How often requests waited how long. */
function waitsPlot(found, what) {
  const total = found ? found.counts.reduce((sum, count) => sum + count, 0) : 0;
  if (!total) return el('p', { class: 'quiet' }, `No ${what} yet.`);
  const [width, height, bottom] = [640, 200, 34];
  const most = Math.max(...found.counts);
  const each = width / found.counts.length;
  const bars = found.counts.map((count, i) => {
    const tall = (height - bottom - 14) * count / most;
    const bound = i < found.bounds.length ? `at most ${duration(found.bounds[i])}` : `more than ${duration(found.bounds[i - 1])}`;
    return svg('rect', { class: 'column', x: i * each + 1, y: height - bottom - tall, width: each - 2, height: tall }, svg('title', {}, `${bound}: ${count}`));
  });
  const short = (s) => (s < 1 ? `${s * 1000}ms` : s < 60 ? `${s}s` : s < 3600 ? `${s / 60}m` : `${s / 3600}h`);
  const marks = found.counts.map((_, i) => svg('text', { x: i * each + each / 2, y: height - bottom + 14, 'text-anchor': 'middle' },
    i < found.bounds.length ? short(found.bounds[i]) : 'more'));
  const numbers = found.counts.map((count, i) => svg('text', { x: i * each + each / 2, y: height - bottom - (height - bottom - 14) * count / most - 3, 'text-anchor': 'middle' }, count ? String(count) : ''));
  let soFar = 0;
  const middle = found.counts.findIndex((count) => { soFar += count; return soFar * 2 >= total; });
  const median = middle < found.bounds.length ? `half of them within ${duration(found.bounds[middle])}` : `half of them took more than ${duration(found.bounds[middle - 1])}`;
  const said = `${total.toLocaleString()} ${what}, ${median}`;
  return el('figure', {}, svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': said }, bars, marks, numbers), el('figcaption', { class: 'quiet' }, said));
}

/** How much of a limit is used. `null` is no limit; what a launcher does not tell is not guessed. */
function quotaText(quota, used) {
  if (quota.limit === null) return `${numberText(used)} used, no limit`;
  return `${numberText(used)} used, ${numberText(Math.max(0, quota.limit - used))} free of ${numberText(quota.limit)}`;
}

function quotaLine(quota) {
  const used = quota.ours + quota.others;
  const [name, text] = [word(quota.resource), quotaText(quota, used)];
  const bar = Number.isFinite(quota.limit) && Number.isFinite(used)
    ? el('meter', { min: 0, max: Math.max(quota.limit, 1), high: quota.limit * 0.9, value: Math.min(used, quota.limit), 'aria-label': `${name}: ${text}` })
    : el('span');
  return [el('span', {}, name), bar, el('span', { class: 'quiet', title: `ours ${numberText(quota.ours)}, others ${numberText(quota.others)}` }, text)];
}

function quotaLines(quotas) {
  return el('div', { class: 'quota' }, quotas.flatMap((quota) => quotaLine(fields(quota))));
}

// --- views ---------------------------------------------------------------------------------------------------------------

const nodeRows = () => [...state.nodes.values()];
const requestRows = () => [...state.requests.values()];
const isOpen = (row) => row[REQUEST.state] === 'requested' || row[REQUEST.state] === 'pending';

function nodesView() {
  const list = new List({
    key: 'nodes', empty: 'There are no nodes.', rows: nodeRows,
    filters: [
      { name: 'state', title: 'State', values: () => nodeRows().map((row) => row[NODE.state]), has: (row, value) => row[NODE.state] === value },
      { name: 'label', title: 'Label', values: () => nodeRows().flatMap((row) => many(row[NODE.labels])), has: (row, value) => many(row[NODE.labels]).includes(value) },
      { name: 'provider', title: 'Provider', values: () => nodeRows().map((row) => row[NODE.provider]).filter(Boolean), has: (row, value) => row[NODE.provider] === value },
    ],
    columns: [
      { title: 'Node', value: (row) => row[NODE.id], cell: (row) => link('node', row[NODE.id]) },
      { title: 'State', value: (row) => row[NODE.state], cell: (row) => stateText(row[NODE.state]) },
      { title: 'For', kind: 'number', value: (row) => -row[NODE.since], cell: (row) => ageText(row[NODE.since]) },
      { title: 'Labels', value: (row) => row[NODE.labels].join(), cell: (row) => row[NODE.labels].join(', ') },
      { title: 'Provider', value: (row) => row[NODE.provider] || '', cell: (row) => [row[NODE.provider], row[NODE.pool]].filter(Boolean).join(' / ') },
      { title: 'Address', value: (row) => row[NODE.address] || '', kind: 'mono', cell: (row) => row[NODE.address] || '' },
      { title: 'Locked', value: (row) => (row[NODE.locked] ? 0 : 1), cell: (row) => (row[NODE.locked] ? 'locked' : '') },
      { title: 'Request', value: (row) => row[NODE.request] || '', cell: (row) => (row[NODE.request] ? link('request', row[NODE.request]) : '') },
      { title: 'Comment', value: (row) => row[NODE.comment] || '', cell: (row) => row[NODE.comment] || '' },
    ],
  });
  return { title: 'Nodes', element: el('div', {}, el('h2', {}, 'Nodes'), list.element), draw: () => list.draw() };
}

/** Reasons are gathered of the oldest requests only; each request's own page has its own. */
const isLookedAt = (row) => state.figures !== null && Object.hasOwn(fields(state.figures.reasons), row[REQUEST.id]);

function verdictOf(row) {
  const reasons = isLookedAt(row) ? many(state.figures.reasons[row[REQUEST.id]]) : [];
  const order = ['accept', 'defer', 'yield', 'decline', 'ignore'];
  return [...reasons].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict))[0] || null;
}

function verdictCell(row) {
  if (!isOpen(row)) return '';
  const verdict = verdictOf(row);
  if (verdict) return `${verdict.verdict}: ${verdict.reason} (${verdict.pool})`;
  return isLookedAt(row) ? 'no pool has decided yet' : 'not looked at yet: see its page';
}

function requestColumns() {
  return [
    { title: 'Request', value: (row) => row[REQUEST.id], cell: (row) => link('request', row[REQUEST.id]) },
    { title: 'State', value: (row) => row[REQUEST.state], cell: (row) => stateText(row[REQUEST.state]) },
    { title: 'Age', kind: 'number', value: (row) => -row[REQUEST.created], cell: (row) => ageText(row[REQUEST.created]) },
    { title: 'Labels', value: (row) => row[REQUEST.labels].join(), cell: (row) => row[REQUEST.labels].join(', ') },
    { title: 'Requestor', value: (row) => row[REQUEST.requestor] || '', cell: (row) => row[REQUEST.requestor] || '' },
    { title: 'Priority', kind: 'number', value: (row) => row[REQUEST.priority], cell: (row) => word(row[REQUEST.priority]) },
    { title: 'Nodes', value: (row) => row[REQUEST.nodes].length, cell: (row) => row[REQUEST.nodes].flatMap((id, i) => [i ? ', ' : '', link('node', id)]) },
    { title: 'Event', kind: 'mono', value: (row) => row[REQUEST.event] || '', cell: (row) => row[REQUEST.event] || '' },
    { title: 'Verdict and reason', value: verdictCell, cell: verdictCell },
  ];
}

function requestsView() {
  const list = new List({
    key: 'requests', empty: 'There are no requests.', rows: requestRows, columns: requestColumns(), sort: { column: 2, down: true },
    filters: [
      { name: 'state', title: 'State', values: () => requestRows().map((row) => row[REQUEST.state]), has: (row, value) => row[REQUEST.state] === value },
      { name: 'label', title: 'Label', values: () => requestRows().flatMap((row) => many(row[REQUEST.labels])), has: (row, value) => many(row[REQUEST.labels]).includes(value) },
      { name: 'requestor', title: 'Requestor', values: () => requestRows().map((row) => row[REQUEST.requestor]).filter(Boolean), has: (row, value) => row[REQUEST.requestor] === value },
    ],
  });
  list.extra = verdictCell;
  return { title: 'Requests', element: el('div', {}, el('h2', {}, 'Requests'), list.element), draw: () => list.draw() };
}

function uploadRow(upload) {
  return el('tr', {}, el('td', { class: 'mono' }, `↳ ${upload.id}`), el('td', {}, stateText(upload.state)), el('td', {}, ageText(upload.since)),
    el('td', {}, `${upload.provider}${upload.name ? `: ${upload.name}` : ''}`));
}

function buildRow(build) {
  return el('tr', {}, el('td', { class: 'mono' }, build.id), el('td', {}, stateText(build.state)), el('td', {}, ageText(build.since)),
    el('td', {}, `${build.builder || ''} ${build.formats || ''}`));
}

const rowOrWord = (id, make) => {
  const row = orWord(id, make);
  return row.tagName === 'TR' ? row : el('tr', {}, el('td', { colspan: 4 }, row));
};

function imageParts(image) {
  const rows = many(image.builds).flatMap((build) => [rowOrWord(build.id, () => buildRow(build)),
    ...many(build.uploads).map((upload) => rowOrWord(upload.id, () => uploadRow(upload)))]);
  const heads = ['Build or upload', 'State', 'For', 'Where'].map((title) => el('th', { scope: 'col' }, title));
  return [image.paused ? el('p', {}, stateText('paused'), ' by command') : null,
    image.request ? el('p', {}, `a build is asked for: ${image.request}`) : null,
    rows.length ? el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, rows))) : el('p', { class: 'quiet' }, 'no builds')];
}

function imagesView() {
  const body = el('div', { class: 'grid' });
  const draw = () => {
    if (!state.images.length) return renew(body, el('p', { class: 'quiet' }, 'No builder has built an image here.'));
    renew(body, state.images.map((image) => panelOf(image.name, () => imageParts(image))));
  };
  return { title: 'Images', element: el('div', {}, el('h2', {}, 'Images, builds and uploads'), body), draw };
}

function callsText(calls) {
  if (calls.count === 0) return 'no calls lately';
  if (!Number.isFinite(calls.count)) return NONE;
  const slow = calls.p95_s === null ? 'more than a minute' : duration(calls.p95_s);
  return `${numbered(calls.count, 'calls')} in ${duration(calls.window_s)} (${numberText(calls.count * 60 / Math.max(1, calls.window_s))} a minute), `
    + `mean ${duration(calls.mean_s)}, 95 % within ${slow}, ${numberText(100 * calls.failed / calls.count)} % failed`;
}

function poolText(pool) {
  const bound = pool.max_servers === null ? 'no limit of its own' : `at most ${word(pool.max_servers)} ${pool.max_servers === 1 ? 'server' : 'servers'}`;
  return `${bound}; ${Array.isArray(pool.labels) ? pool.labels.join(', ') || 'no labels' : `labels ${NONE}`}`;
}

function stateLinks(provider) {
  if (provider.nodes !== fields(provider.nodes)) return NONE;
  const links = Object.entries(fields(provider.nodes)).map(([name, number]) => el('a', { href: `#/nodes?${new URLSearchParams({ state: name, provider: word(provider.name) })}` }, `${word(number)} ${name} `));
  return links.length ? links : 'none';
}

function seenText(provider) {
  if (provider.seen_at === undefined) return NONE;
  return provider.seen_at ? [ageText(provider.seen_at), ' ago'] : 'not yet';
}

function quotaPart(quotas) {
  if (many(quotas).length) return quotaLines(quotas);
  return el('p', { class: 'quiet' }, Array.isArray(quotas) ? 'none known' : NONE);
}

/** Another launcher may be of another version: parts that it does not tell are dashes. */
function providerParts(launcher, provider) {
  return [el('p', { class: 'quiet' }, `${word(provider.driver)}, by ${launcher}`, provider.spacing_s ? `, ${word(provider.spacing_s)} s between two calls` : ''),
    provider.trouble ? el('p', { class: 'bad' }, String(provider.trouble)) : null,
    el('dl', {},
      el('dt', {}, 'Nodes'), el('dd', {}, stateLinks(provider)),
      el('dt', {}, 'API'), el('dd', {}, callsText(fields(provider.calls))),
      el('dt', {}, 'Looked at'), el('dd', {}, seenText(provider)),
      Array.isArray(provider.pools) ? provider.pools.map(fields).flatMap((pool) => [el('dt', {}, `Pool ${word(pool.name)}`), el('dd', {}, poolText(pool))])
        : [el('dt', {}, 'Pools'), el('dd', {}, NONE)]),
    el('h3', {}, 'Quota'), quotaPart(provider.quotas)];
}

function launcherPanels(launcher) {
  const name = word(launcher.launcher);
  if (launcher.missing) return [panel(name, el('p', { class: 'bad' }, `No figures of this launcher: ${launcher.missing}.`))];
  const providers = many(launcher.providers).map(fields);
  if (providers.length) return providers.map((provider) => panelOf(word(provider.name), () => providerParts(name, provider)));
  return [panel(name, el('p', { class: 'quiet' }, Array.isArray(launcher.providers) ? 'This launcher has no providers.' : `Providers: ${NONE}`))];
}

const launchersOf = (figures) => many(fields(figures).launchers).map(fields);

function providersView() {
  const body = el('div', { class: 'grid' });
  let drawn = null;
  const draw = () => {
    if (drawn === state.figures) return;
    drawn = state.figures;
    renew(body, launchersOf(drawn).flatMap(launcherPanels));
  };
  return { title: 'Providers', element: el('div', {}, el('h2', {}, 'Providers'), body), draw, needs: 'figures' };
}

/** Nodes by state, and by label and provider. */
function countNodes() {
  const [counts, groups] = [new Map(), new Map()];
  for (const row of state.nodes.values()) {
    counts.set(row[NODE.state], (counts.get(row[NODE.state]) || 0) + 1);
    for (const label of many(row[NODE.labels])) {
      const key = JSON.stringify([label, row[NODE.provider]]);
      const group = groups.get(key) || { total: 0, ready: 0, used: 0 };
      group.total += 1;
      if (row[NODE.state] === 'ready') group.ready += 1;
      if (row[NODE.state] === 'in-use') group.used += 1;
      groups.set(key, group);
    }
  }
  return [counts, groups];
}

function stateTiles(counts) {
  const shown = STATES.filter((name) => counts.get(name) || ['building', 'ready', 'in-use'].includes(name));
  return [el('a', { class: 'tile', href: '#/nodes' }, el('b', {}, state.nodes.size.toLocaleString()), 'all nodes'),
    ...shown.map((name) => el('a', { class: `tile tone-${name}`, href: `#/nodes?state=${name}` }, el('b', {}, (counts.get(name) || 0).toLocaleString()), name))];
}

function waitingRow(row) {
  const cells = [() => link('request', row[REQUEST.id]), () => ageText(row[REQUEST.created]), () => row[REQUEST.labels].join(', '), () => verdictCell(row)];
  const kinds = ['', 'number', '', 'quiet'];
  return el('tr', {}, cells.map((cell, index) => el('td', { class: kinds[index] }, orWord(row[REQUEST.id], cell))));
}

function waitingTable(waiting) {
  if (!waiting.length) return [el('p', { class: 'quiet' }, 'None.')];
  return [el('p', { class: 'quiet' }, waiting.length > OLDEST ? `the oldest ${OLDEST} of ${waiting.length.toLocaleString()}` : `${waiting.length}`),
    el('div', { class: 'table' }, el('table', { class: 'stack' }, el('tbody', {}, waiting.slice(0, OLDEST).map(waitingRow))))];
}

function groupRow([key, group]) {
  const [label, provider] = JSON.parse(key);
  const query = new URLSearchParams({ label, ...(provider ? { provider } : {}) });
  return el('tr', {}, el('td', {}, el('a', { href: `#/nodes?${query}` }, label)), el('td', {}, provider || ''),
    [group.total, group.ready, group.used].map((number) => el('td', { class: 'number' }, String(number))));
}

function groupTable(groups) {
  if (!groups.size) return el('p', { class: 'quiet' }, 'No nodes.');
  const heads = ['Label', 'Provider', 'Nodes', 'Ready', 'In use'].map((title, i) => el('th', { scope: 'col', class: i > 1 ? 'number' : '' }, title));
  return el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, [...groups].sort().slice(0, 30).map(groupRow))));
}

function launcherQuotas(launcher) {
  if (launcher.missing) return [el('p', { class: 'bad' }, `${word(launcher.launcher)}: no figures, ${launcher.missing}.`)];
  const limited = many(launcher.providers).map(fields).filter((provider) => many(provider.quotas).length);
  return limited.flatMap((provider) => [el('h3', {}, word(provider.name)), orWord(word(provider.name), () => quotaLines(provider.quotas))]);
}

/** Puts in what `make` makes; where it cannot, the other panels do not suffer. */
function fill(element, what, make) {
  renew(element, orWord(what, make));
}

function overviewView() {
  const tiles = el('div', { class: 'tiles' });
  const open = el('div');
  const states = el('div');
  const waits = el('div');
  const launches = el('div');
  const quota = el('div');
  const labels = el('div');
  let [plots, figures, said] = [null, null, ''];
  const element = el('div', { class: 'grid' },
    el('section', { class: 'panel wide' }, el('h2', {}, 'Nodes by state'), tiles),
    panel('Nodes over time', states), panel('Requests that wait', open),
    panel('Time from request to ready nodes', waits), panel('Time of launches', launches),
    panel('Quota', quota), panel('Nodes by label and provider', labels));
  const drawRows = () => {
    const [counts, groups] = countNodes();
    const waiting = requestRows().filter(isOpen).sort((a, b) => a[REQUEST.created] - b[REQUEST.created]);
    const oldest = waiting.slice(0, OLDEST);
    const text = JSON.stringify([[...counts], [...groups], oldest, waiting.length, oldest.map((row) => attempt(() => verdictCell(row), ''))]);
    if (text === said) return;
    said = text;
    fill(tiles, 'The states', () => stateTiles(counts));
    fill(open, 'What waits', () => waitingTable(waiting));
    fill(labels, 'The labels', () => groupTable(groups));
  };
  const drawPlots = () => {
    if (!state.plots || plots === state.plots) return;
    plots = state.plots;
    fill(states, 'The plot', () => statesPlot(plots));
    fill(waits, 'The plot', () => waitsPlot(plots.waits, 'requests'));
    fill(launches, 'The plot', () => waitsPlot(plots.launches, 'launches'));
  };
  const drawQuotas = () => {
    if (!state.figures || figures === state.figures) return;
    figures = state.figures;
    fill(quota, 'The quota', () => launchersOf(figures).flatMap(launcherQuotas));
    if (!quota.firstChild) quota.append(el('p', { class: 'quiet' }, 'No limits are known.'));
  };
  const draw = () => { drawRows(); drawPlots(); drawQuotas(); };
  return { title: 'Overview', element, draw, needs: 'plots' };
}

function eventItem(event) {
  return el('li', {}, clockText(event.at), ' ',
    event.node ? ['node ', link('node', event.node)] : ['request ', link('request', event.request)], ' ',
    event.state ? stateText(event.state) : 'is gone',
    event.node && event.request ? [' for ', link('request', event.request)] : null);
}

function historyList(events) {
  if (!events.length) return el('p', { class: 'quiet' }, 'Nothing has happened since this launcher started to remember.');
  return el('ol', { class: 'history' }, events.map(eventItem));
}

function recordValue(key, value) {
  if (key === 'nodes') return value.flatMap((id, i) => [i ? ', ' : '', link('node', id)]);
  if (key === 'state') return stateText(value);
  if (key === 'allocated_to') return link('request', value);
  if (Array.isArray(value)) return value.map(String).join(', ');
  if (typeof value === 'object') return JSON.stringify(value);
  return /_time$/.test(key) ? clockText(value) : String(value);
}

/** What is in a record, as far as it is set. */
function recordList(record) {
  const shown = Object.entries(record).filter(([, value]) => value !== null && value !== '' && !(Array.isArray(value) && !value.length));
  return el('dl', {}, shown.flatMap(([key, value]) => [el('dt', {}, key), el('dd', {}, orWord(key, () => recordValue(key, value)))]));
}

function reasonsTable(reasons) {
  if (!reasons.length) return el('p', { class: 'quiet' }, 'Nothing yet.');
  const heads = ['Pool', 'Verdict', 'Reason', 'Since'].map((name) => el('th', { scope: 'col' }, name));
  const rows = reasons.map((why) => el('tr', {}, el('td', {}, why.pool), el('td', {}, why.verdict), el('td', {}, why.reason), el('td', {}, clockText(why.since))));
  return el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, rows)));
}

function onePanels(kind, id, found) {
  const events = many(found.events);
  if (!found.record && !events.length) return [el('p', { class: 'bad' }, `There is no ${kind} ${id}, and there was none since `, clockText(found.since), '.')];
  const panels = [panelOf('Record', () => (found.record ? recordList(found.record) : el('p', {}, 'It is gone.'))),
    panelOf('History', () => [historyList(events), el('p', { class: 'quiet' }, 'since ', clockText(found.since))])];
  if (kind === 'request' && found.record) panels.push(panelOf('What the pools of this launcher decided', () => reasonsTable(many(found.reasons))));
  return panels;
}

function oneView(kind, id) {
  const title = `${kind === 'node' ? 'Node' : 'Request'} ${id}`;
  const body = el('div', { class: 'grid' }, el('p', { class: 'quiet' }, 'Loading…'));
  let [shown, asked, last] = ['', 0, ''];
  // An older answer may come after a newer one; only what was asked for last is shown.
  const load = async () => {
    asked += 1;
    const own = asked;
    const answer = await fetch(`/api/${kind}/${encodeURIComponent(id)}`);
    const text = answer.ok ? await answer.text() : '';
    if (own !== asked) return;
    if (answer.status === 404) return body.replaceChildren(el('p', { class: 'bad' }, `There is no ${kind} ${id}.`));
    if (!answer.ok) throw new Error(`The server answers ${answer.status}.`);
    if (text === last) return;
    renew(body, onePanels(kind, id, JSON.parse(text)));
    last = text;
  };
  const draw = () => {
    // Why a request waits changes without the request; figures come as often as anybody looks at that.
    const reasons = kind === 'request' && state.requests.has(id) && state.figures ? state.figures.now : 0;
    const row = JSON.stringify([(kind === 'node' ? state.nodes : state.requests).get(id) || null, reasons]);
    if (row === shown) return;
    shown = row;
    load().catch((error) => {
      if (row !== shown) return;
      if (!last) body.replaceChildren(el('p', { class: 'bad' }, `${title} cannot be shown yet: ${error.message}`));
      setTimeout(() => { if (row === shown && body.isConnected) { shown = ''; draw(); } }, 5000);
    });
  };
  return { title, element: el('div', {}, el('h2', {}, title), body), draw };
}

// --- routes --------------------------------------------------------------------------------------------------------------

const VIEWS = { overview: overviewView, nodes: nodesView, requests: requestsView, images: imagesView, providers: providersView };

function noView() {
  const element = el('section', { class: 'panel' }, el('h2', {}, 'There is no such page'), el('p', {}, el('a', { href: '#/' }, 'To the overview')));
  return { title: 'No such page', element, draw: () => {} };
}

/** What an address of this page names; anybody may have written it. */
function viewOf(name, id) {
  if (name === 'node' || name === 'request') {
    try {
      return id ? oneView(name, decodeURIComponent(id)) : noView();
    } catch {
      return noView();
    }
  }
  return Object.hasOwn(VIEWS, name || 'overview') ? VIEWS[name || 'overview']() : noView();
}

function route(moved) {
  const [path] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, id] = path.split('/');
  const known = Object.hasOwn(VIEWS, name);
  view = viewOf(name, id);
  const at = name === 'node' ? 'nodes' : name === 'request' ? 'requests' : known ? name : name ? '' : 'overview';
  for (const anchor of document.querySelectorAll('nav a')) {
    if (anchor.dataset.view === at) anchor.setAttribute('aria-current', 'page');
    else anchor.removeAttribute('aria-current');
  }
  document.title = `${view.title} – Nodepool`;
  main.replaceChildren(view.element);
  if (moved) main.focus();
  if (view.needs === 'plots') inTime(loadPlots());
  draw();
}

let [drawing, drawn, restUntil] = [false, false, 0];

/** Soon, but not before it has rested fifty times as long as it took to draw: many changes cost no more than some. */
function draw() {
  if (drawing || !state.loaded) return;
  drawing = true;
  setTimeout(() => requestAnimationFrame(drawNow), Math.max(0, restUntil - performance.now()));
}

function drawNow() {
  drawing = false;
  if (document.hidden) return;
  const began = performance.now();
  document.getElementById('count-nodes').textContent = state.nodes.size.toLocaleString();
  document.getElementById('count-requests').textContent = requestRows().filter(isOpen).length.toLocaleString();
  view.draw();
  document.documentElement.dataset.revision = state.revision;
  if (!drawn) { drawn = true; performance.mark('drawn'); }
  restUntil = performance.now() + Math.min(2000, 50 * (performance.now() - began));
}

function tick() {
  if (document.hidden) return;
  for (const element of main.querySelectorAll('time[data-since]')) {
    const text = duration(Math.floor(now() - Number(element.dataset.since)));
    if (element.textContent !== text) element.textContent = text;
  }
}

// --- the way to the server -----------------------------------------------------------------------------------------------

function say(text, lost) {
  const element = document.getElementById('connection');
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle('lost', Boolean(lost));
}

/** Whatever comes and goes, one line says what is true now. */
function tellConnection() {
  if (trouble.stream) say('no connection to the launcher, trying again', true);
  else if (trouble.load) say('the server does not answer, trying again', true);
  else if (loading || !state.loaded) return;
  else if (state.connected) say('live');
  else say('live, but ZooKeeper does not answer: this may be old', true);
}

function apply(patch) {
  if (patch.revision <= state.revision) return;
  // Something between is missing, so everything is asked for.
  if (patch.from > state.revision) return void loadState();
  for (const row of patch.nodes.put) state.nodes.set(row[0], row);
  for (const id of patch.nodes.gone) state.nodes.delete(id);
  for (const row of patch.requests.put) state.requests.set(row[0], row);
  for (const id of patch.requests.gone) state.requests.delete(id);
  if (patch.images) state.images = patch.images;
  state.revision = patch.revision;
  state.connected = patch.connected;
  tellConnection();
  draw();
}

/** Everything anew. What fails is tried again, less and less often; of two at a time only the later one counts. */
async function loadState(wait = 1) {
  loads += 1;
  const own = loads;
  loading = true;
  early = [];
  try {
    const answer = await fetch('/api/state', { signal: AbortSignal.timeout(LONGEST_LOAD) });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const whole = await answer.json();
    if (own === loads) takeState(whole);
  } catch {
    if (own !== loads) return;
    trouble.load = true;
    tellConnection();
    setTimeout(() => { if (own === loads) loadState(Math.min(15, wait * 2)); }, wait * 1000);
  }
}

function takeState(whole) {
  const [nodes, requests] = [whole.nodes, whole.requests].map((rows) => new Map(rows.map((row) => [row[0], row])));
  Object.assign(state, { nodes, requests, images: many(whole.images), revision: whole.revision, connected: whole.connected, loaded: true });
  loading = false;
  trouble.load = false;
  const waiting = early;
  early = [];
  waiting.forEach(take);
  tellConnection();
  draw();
}

/** A patch belongs to what is loaded; what comes before that waits. */
function take(patch) {
  if (!loading) apply(patch);
  // Without the first ones the gap is noticed, and everything asked for again.
  else if (early.push(patch) > MOST_EARLY) early.shift();
}

function takeFigures(figures) {
  state.figures = figures;
  if (Number.isFinite(figures.now)) skew = figures.now - Date.now() / 1000;
  document.getElementById('since').replaceChildren('History since ', clockText(figures.since), '.');
  draw();
}

async function loadFigures() {
  const answer = await fetch('/api/figures');
  if (answer.ok) takeFigures(await answer.json());
}

async function loadPlots() {
  const answer = await fetch('/api/plots');
  if (answer.ok) state.plots = await answer.json();
  draw();
}

/** For what is asked for again in some seconds anyway. */
const inTime = (promise) => promise.catch(() => {});

function connect() {
  const events = new EventSource('/api/stream');
  events.addEventListener('hello', () => { trouble.stream = false; loadState(); inTime(loadFigures()); });
  events.addEventListener('reload', () => loadState());
  events.addEventListener('patch', (event) => take(JSON.parse(event.data)));
  events.addEventListener('figures', (event) => takeFigures(JSON.parse(event.data)));
  events.onerror = () => {
    trouble.stream = true;
    tellConnection();
    if (events.readyState === EventSource.CLOSED) { events.close(); setTimeout(connect, 5000); }
  };
}

addEventListener('hashchange', () => route(true));
addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
  const search = main.querySelector('input[type=search]');
  if (search) { event.preventDefault(); search.focus(); }
});
document.addEventListener('visibilitychange', draw);
setInterval(tick, 1000);
setInterval(() => { if (view && view.needs === 'plots' && !document.hidden) inTime(loadPlots()); }, 15000);
route(false);
connect();
