// The live page: one copy of the state, patched by server-sent events; the current view is redrawn after changes.

import { durationsChart, statesChart } from './charts.js';
import { NONE, asArray, asObject, dateOf, duration, el, numberText, numbered, stateText, textOrDash } from './format.js';

const STATES = ['init', 'building', 'testing', 'ready', 'in-use', 'used', 'hold', 'deleting', 'failed', 'aborted', 'deleted'];
const PAGE_SIZE = 100; // rows
const MAX_OVERVIEW_ROWS = 10;
const MAX_OVERVIEW_ROWS_PHONE = 4; // where a row is a block of lines
const MAX_ENDED = 50; // as in the event history of the server
const DEFAULT_CHART_WIDTH = 640; // pixels, for a panel without a layout
const METRICS_INTERVAL_S = 5; // as on the server
const MAX_PENDING_PATCHES = 1000;
const LOAD_TIMEOUT_MS = 60000;
const NODE = { id: 0, state: 1, since: 2, provider: 3, pool: 4, labels: 5, address: 6, locked: 7, request: 8, comment: 9, zone: 10, host: 11 };
const REQUEST = { id: 0, state: 1, since: 2, requestor: 3, labels: 4, nodes: 5, declined: 6, event: 7, priority: 8, created: 9 };
const ENDED = { number: 0, id: 1, outcome: 2, created: 3, at: 4, requestor: 5, labels: 6, requested: 7, pools: 8, nodes: 9, assigned: 10, declined: 11 };

const state = { nodes: new Map(), requests: new Map(), images: [], ended: [], revision: -1, connected: false, loaded: false, metrics: null, timeseries: null };
const failing = { stream: false, load: false, metrics: false };
const main = document.getElementById('main');
let clockSkew = 0; // the server's clock minus ours, in seconds
let view = null;
let loading = false; // while the state is loaded, the previous one stays visible
let pendingPatches = []; // patches that arrived before the state they apply to
let timeseriesLoads = 0;
let loadGeneration = 0; // number of state requests: only the newest response counts

// --- building blocks ---------------------------------------------------------------------------------------------------

const now = () => Date.now() / 1000 + clockSkew;
const link = (kind, id) => el('a', { href: `#/${kind}/${encodeURIComponent(id)}`, class: 'mono' }, id);

/** An age in whole seconds, updated by `tick`. */
function ageText(since) {
  const date = dateOf(since);
  if (!date) return el('span', { class: 'quiet' }, '?');
  const seconds = Math.floor(Number(since));
  return el('time', { 'data-since': seconds, datetime: date.toISOString() }, duration(Math.floor(now() - seconds)));
}

const timeElement = (date, text) => el('time', { datetime: date.toISOString(), title: date.toISOString() }, text);

function clockText(at) {
  const date = dateOf(at);
  if (!date) return el('span', { class: 'quiet' }, at === null || at === undefined ? '?' : String(at));
  return timeElement(date, date.toLocaleString());
}

/** The time of day, with the date if it is not today. */
function shortClockText(at) {
  const date = dateOf(at);
  if (!date) return el('span', { class: 'quiet' }, NONE);
  const day = date.toDateString() === new Date().toDateString() ? '' : `${date.toLocaleDateString([], { month: 'short', day: 'numeric' })}, `;
  return timeElement(date, `${day}${date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' })}`);
}

/** Result of `make`, or an error text, so that an invalid record affects only its own row. */
function orError(what, make) {
  try {
    return make();
  } catch (error) {
    return el('p', { class: 'bad' }, `${what} cannot be shown: ${error.message}`);
  }
}

/** Result of `make`, or `otherwise` if it fails for an invalid record. */
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

/** A panel whose content is replaced by an error text if it cannot be shown. */
function panelOf(title, make) {
  const children = orError(title, make);
  return panel(title, ...(Array.isArray(children) ? children : [children]));
}

/**
 * Replaces the children that changed. Selection and focus stay in unchanged ones; in a replaced one the focus moves to the link with
 * the same address.
 */
function reconcileChildren(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const replacements = children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const existing = [...element.childNodes];
  replacements.forEach((child, index) => {
    if (index >= existing.length) element.append(child);
    else if (!existing[index].isEqualNode(child)) existing[index].replaceWith(child);
  });
  existing.slice(replacements.length).forEach((child) => child.remove());
  if (!focused || focused.isConnected) return;
  const href = focused.getAttribute('href');
  const successor = href && [...element.querySelectorAll('a')].find((other) => other.getAttribute('href') === href);
  if (successor) successor.focus({ preventScroll: true });
}

// --- tables --------------------------------------------------------------------------------------------------------------

/** Rows of a table, keyed by their first value. Unchanged rows keep their elements, and so focus and selection. */
class TableBody {
  constructor(columns, nameOf = (row) => row[0]) {
    this.columns = columns;
    this.nameOf = nameOf; // for error texts
    this.extra = null; // text of a row that depends on other data
    this.rowsById = new Map();
    this.element = el('tbody');
  }

  update(visible) {
    const rowsById = new Map();
    let at = this.element.firstChild;
    for (const row of visible) {
      let line = this.rowsById.get(row[0]);
      const text = JSON.stringify(row) + (this.extra ? attempt(() => this.extra(row), '') : '');
      if (!line || line.text !== text) {
        const cells = this.columns.map((column) => el('td', { class: column.kind, 'data-label': column.title }, orError(this.nameOf(row), () => column.cell(row))));
        if (line) {
          reconcileChildren(line.element, cells);
        } else {
          line = { element: el('tr', {}, cells) };
        }
        line.text = text;
      }
      rowsById.set(row[0], line);
      if (line.element !== at) this.element.insertBefore(line.element, at);
      else at = at.nextSibling;
    }
    for (const [id, line] of this.rowsById) if (!rowsById.has(id)) line.element.remove();
    this.rowsById = rowsById;
  }
}

/** A list with search, filters, sorting and pages. */
class List {
  constructor({ key, columns, rows, filters, empty, sort }) {
    Object.assign(this, { key, columns, rows, filters, empty });
    this.page = 0;
    this.sort = sort || { column: 0, down: false };
    const query = new URLSearchParams(location.hash.split('?')[1] || '');
    this.search = el('input', { type: 'search', value: query.get('q') || '', placeholder: 'any text', oninput: () => this.onFilterChange() });
    this.selects = filters.map((filter) => {
      const select = el('select', { onchange: () => this.onFilterChange() });
      select.dataset.wanted = query.get(filter.name) || '';
      return select;
    });
    this.summary = el('p', { class: 'quiet', 'aria-live': 'off' });
    this.body = new TableBody(columns);
    this.headers = columns.map((column, index) => el('th', { scope: 'col', class: column.kind },
      el('button', { type: 'button', onclick: () => this.sortBy(index) }, column.title)));
    this.back = el('button', { type: 'button', onclick: () => { this.page -= 1; this.draw(); } }, 'Previous');
    this.next = el('button', { type: 'button', onclick: () => { this.page += 1; this.draw(); } }, 'Next');
    this.where = el('span', { class: 'quiet' });
    this.element = el('section', { class: 'panel' },
      el('div', { class: 'filters' }, el('label', {}, 'Search', this.search),
        filters.map((filter, index) => el('label', {}, filter.title, this.selects[index]))),
      this.summary,
      el('div', { class: 'table' }, el('table', { class: 'stack' }, el('thead', {}, el('tr', {}, this.headers)), this.body.element)),
      el('div', { class: 'pager' }, this.back, this.next, this.where));
  }

  onFilterChange() {
    // Screen readers announce the summary after a filter change, but not with every change of a node.
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

  /** Updates the options of the filters. This reads all rows, so at most every five seconds. */
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
    const pages = Math.max(1, Math.ceil(found.length / PAGE_SIZE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const visible = found.slice(this.page * PAGE_SIZE, (this.page + 1) * PAGE_SIZE);
    this.summary.textContent = all.length === 0 ? this.empty
      : found.length === all.length ? numbered(all.length, this.key) : `${found.length.toLocaleString()} of ${numbered(all.length, this.key)}`;
    this.where.textContent = pages > 1 ? `page ${this.page + 1} of ${pages}` : '';
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.back.hidden = this.next.hidden = pages === 1;
    this.headers.forEach((head, index) => head.setAttribute('aria-sort',
      index !== this.sort.column ? 'none' : this.sort.down ? 'descending' : 'ascending'));
    this.body.update(visible);
  }

  sorted(rows) {
    // Rows are ordered by id already, because new ones have higher ids.
    if (this.sort.column === 0 && !this.sort.down) return rows;
    const { value } = this.columns[this.sort.column];
    const order = this.sort.down ? -1 : 1;
    const keyed = rows.map((row) => [attempt(() => value(row), ''), row]);
    keyed.sort(([x, a], [y, b]) => order * (x < y ? -1 : x > y ? 1 : a[0] < b[0] ? -1 : 1));
    return keyed.map(([, row]) => row);
  }
}

/** Usage of a limit. `null` means no limit; a missing value stays unknown. */
function quotaText(quota, used) {
  if (quota.limit === null) return `${numberText(used)} used, no limit`;
  return `${numberText(used)} used, ${numberText(Math.max(0, quota.limit - used))} free of ${numberText(quota.limit)}`;
}

function quotaLine(quota) {
  const used = quota.ours + quota.others;
  const [name, text] = [textOrDash(quota.resource), quotaText(quota, used)];
  const bar = Number.isFinite(quota.limit) && Number.isFinite(used)
    ? el('meter', { min: 0, max: Math.max(quota.limit, 1), high: quota.limit * 0.9, value: Math.min(used, quota.limit), 'aria-label': `${name}: ${text}` })
    : el('span');
  return [el('span', {}, name), bar, el('span', { class: 'quiet', title: `ours ${numberText(quota.ours)}, others ${numberText(quota.others)}` }, text)];
}

function quotaLines(quotas) {
  return el('div', { class: 'quota' }, quotas.flatMap((quota) => quotaLine(asObject(quota))));
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
      { name: 'label', title: 'Label', values: () => nodeRows().flatMap((row) => asArray(row[NODE.labels])), has: (row, value) => asArray(row[NODE.labels]).includes(value) },
      { name: 'provider', title: 'Provider', values: () => nodeRows().map((row) => row[NODE.provider]).filter(Boolean), has: (row, value) => row[NODE.provider] === value },
    ],
    columns: [
      { title: 'Node', value: (row) => row[NODE.id], cell: (row) => link('node', row[NODE.id]) },
      { title: 'State', value: (row) => row[NODE.state], cell: (row) => stateText(row[NODE.state]) },
      { title: 'For', kind: 'number', value: (row) => -row[NODE.since], cell: (row) => ageText(row[NODE.since]) },
      { title: 'Labels', kind: 'labels', value: (row) => row[NODE.labels].join(), cell: (row) => row[NODE.labels].join(', ') },
      { title: 'Provider', kind: 'text', value: (row) => row[NODE.provider] || '', cell: (row) => [row[NODE.provider], row[NODE.pool]].filter(Boolean).join(' / ') },
      { title: 'Address', value: (row) => row[NODE.address] || '', kind: 'mono', cell: (row) => row[NODE.address] || '' },
      { title: 'Locked', value: (row) => (row[NODE.locked] ? 0 : 1), cell: (row) => (row[NODE.locked] ? 'locked' : '') },
      { title: 'Request', value: (row) => row[NODE.request] || '', cell: (row) => (row[NODE.request] ? link('request', row[NODE.request]) : '') },
      { title: 'Comment', kind: 'text', value: (row) => row[NODE.comment] || '', cell: (row) => row[NODE.comment] || '' },
    ],
  });
  return { title: 'Nodes', element: el('div', {}, el('h2', {}, 'Nodes'), list.element), draw: () => list.draw() };
}

/** The server collects reasons for the oldest requests only, with each metrics event. */
const hasReasons = (row) => state.metrics !== null && Object.hasOwn(asObject(state.metrics.reasons), row[REQUEST.id]);

function verdictOf(row) {
  const reasons = hasReasons(row) ? asArray(state.metrics.reasons[row[REQUEST.id]]) : [];
  const order = ['accept', 'defer', 'yield', 'decline', 'ignore'];
  return [...reasons].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict))[0] || null;
}

function verdictCell(row) {
  if (!isOpen(row)) return '';
  const verdict = verdictOf(row);
  if (verdict) return `${verdict.verdict}: ${verdict.reason} (${verdict.pool})`;
  if (!hasReasons(row)) return missingReasons();
  if (row[REQUEST.state] === 'pending') return 'accepted by a pool of another launcher, which prepares its nodes';
  if (launchersOf(state.metrics)[0]?.providers?.length === 0) return 'this launcher has no pools; those of other launchers decide';
  return 'no pool of this launcher has decided yet; each does within seconds';
}

/** Text instead of the reasons of an open request that the last metrics lack. */
function missingReasons() {
  if (!state.metrics && !failing.metrics) return 'loading…';
  const { reasons, max_reasons: limit } = asObject(state.metrics);
  if (Number.isFinite(limit) && Object.keys(asObject(reasons)).length >= limit) {
    return `more than ${limit.toLocaleString()} requests wait: open this one to see its reasons`;
  }
  return `the reasons follow within ${METRICS_INTERVAL_S} s`;
}

function requestColumns() {
  return [
    { title: 'Request', value: (row) => row[REQUEST.id], cell: (row) => link('request', row[REQUEST.id]) },
    { title: 'State', value: (row) => row[REQUEST.state], cell: (row) => stateText(row[REQUEST.state]) },
    { title: 'Age', kind: 'number', value: (row) => -row[REQUEST.created], cell: (row) => ageText(row[REQUEST.created]) },
    { title: 'Labels', kind: 'labels', value: (row) => row[REQUEST.labels].join(), cell: (row) => row[REQUEST.labels].join(', ') },
    { title: 'Requestor', kind: 'text', value: (row) => row[REQUEST.requestor] || '', cell: (row) => row[REQUEST.requestor] || '' },
    { title: 'Priority', kind: 'number', value: (row) => row[REQUEST.priority], cell: (row) => textOrDash(row[REQUEST.priority]) },
    { title: 'Nodes', value: (row) => row[REQUEST.nodes].length, cell: (row) => row[REQUEST.nodes].flatMap((id, i) => [i ? ', ' : '', link('node', id)]) },
    { title: 'Event', kind: 'mono', value: (row) => row[REQUEST.event] || '', cell: (row) => row[REQUEST.event] || '' },
    { title: 'Verdict and reason', kind: 'text', value: verdictCell, cell: verdictCell },
  ];
}

function requestsView() {
  const list = new List({
    key: 'requests', empty: 'There are no requests.', rows: requestRows, columns: requestColumns(), sort: { column: 2, down: true },
    filters: [
      { name: 'state', title: 'State', values: () => requestRows().map((row) => row[REQUEST.state]), has: (row, value) => row[REQUEST.state] === value },
      { name: 'label', title: 'Label', values: () => requestRows().flatMap((row) => asArray(row[REQUEST.labels])), has: (row, value) => asArray(row[REQUEST.labels]).includes(value) },
      { name: 'requestor', title: 'Requestor', values: () => requestRows().map((row) => row[REQUEST.requestor]).filter(Boolean), has: (row, value) => row[REQUEST.requestor] === value },
    ],
  });
  list.body.extra = verdictCell;
  const ended = el('p', {}, el('a', { href: '#/ended' }, ENDED_TITLE));
  return { title: 'Requests', element: el('div', {}, el('h2', {}, 'Requests'), ended, list.element), draw: () => list.draw() };
}

function endedView() {
  const table = endedTable(() => MAX_ENDED);
  const element = el('div', {}, el('h2', {}, ENDED_TITLE), el('p', {}, el('a', { href: '#/requests' }, 'Current requests')), el('section', { class: 'panel' }, table.element,
    el('p', { class: 'quiet' }, `This launcher remembers the last ${MAX_ENDED} since its start. Requests for min-ready nodes are not listed.`)));
  return { title: ENDED_TITLE, element, draw: table.draw };
}

// --- ended requests ------------------------------------------------------------------------------------------------------

const ENDED_TITLE = 'Recently ended requests';
const OUTCOME_NOTES = {
  failed: 'Failed: no pool could serve it.',
  cancelled: 'Cancelled: it was deleted before its nodes were ready.',
  unknown: 'Unknown: it was deleted while this launcher did not follow ZooKeeper, and may have been served before.',
};

const andMore = (number) => (number > 0 ? ` and ${number.toLocaleString()} more` : '');

function endedLabels(row) {
  const labels = row[ENDED.labels].map(([label, number]) => (number > 1 ? `${number} × ${label}` : label));
  const listed = row[ENDED.labels].reduce((sum, [, number]) => sum + number, 0);
  return labels.join(', ') + andMore(row[ENDED.requested] - listed);
}

function endedNodes(row) {
  const nodes = row[ENDED.nodes];
  return [...nodes.flatMap((id, i) => [i ? ', ' : '', link('node', id)]), andMore(row[ENDED.assigned] - nodes.length)];
}

/** Pools that served a request, or declined it. */
function servedBy(row) {
  const pools = row[ENDED.pools].map((pool) => pool.join(' / ')).join(', ');
  if (row[ENDED.outcome] === 'failed') return row[ENDED.declined].length ? `declined by ${[...row[ENDED.declined]].sort().join(', ')}` : '';
  return pools && row[ENDED.outcome] !== 'fulfilled' ? `begun by ${pools}` : pools;
}

const tookText = (row) => ([row[ENDED.created], row[ENDED.at]].every(Number.isFinite) ? duration(row[ENDED.at] - row[ENDED.created]) : NONE);

const ENDED_COLUMNS = [
  { title: 'Request', cell: (row) => link('request', row[ENDED.id]) },
  { title: 'Outcome', cell: (row) => stateText(row[ENDED.outcome]) },
  { title: 'Created', kind: 'time', cell: (row) => shortClockText(row[ENDED.created]) },
  { title: 'Ended', kind: 'time', cell: (row) => shortClockText(row[ENDED.at]) },
  { title: 'Took', kind: 'number', cell: tookText },
  { title: 'Labels', kind: 'labels', cell: endedLabels },
  { title: 'Requestor', kind: 'text', cell: (row) => row[ENDED.requestor] || '' },
  { title: 'Pool', kind: 'text', cell: servedBy },
  { title: 'Nodes', cell: endedNodes },
];

/** Notes on the outcomes of these requests that need an explanation. */
function outcomeNotes(rows) {
  const outcomes = new Set(rows.map((row) => row[ENDED.outcome]));
  return Object.entries(OUTCOME_NOTES).filter(([outcome]) => outcomes.has(outcome)).map(([, note]) => note).join(' ');
}

/** The requests that ended last, the newest first. */
function endedTable(maxRows) {
  const body = new TableBody(ENDED_COLUMNS, (row) => row[ENDED.id]);
  const headers = ENDED_COLUMNS.map((column) => el('th', { scope: 'col', class: column.kind }, column.title));
  const [summary, notes] = [el('p', { class: 'quiet' }), el('p', { class: 'quiet' })];
  const table = el('div', { class: 'table' }, el('table', { class: 'stack' }, el('thead', {}, el('tr', {}, headers)), body.element));
  const draw = () => {
    const rows = state.ended.slice(-maxRows()).reverse();
    table.hidden = !rows.length;
    reconcileChildren(summary, ...endedSummary(rows.length));
    body.update(rows);
    reconcileChildren(notes, outcomeNotes(rows) || null);
  };
  return { element: el('div', {}, summary, table, notes), draw };
}

function endedSummary(shown) {
  if (!shown) return ['None since this launcher started.'];
  if (shown < state.ended.length) return [`the last ${shown} of ${state.ended.length}: `, el('a', { href: '#/ended' }, 'show all')];
  return [shown === MAX_ENDED ? `the last ${MAX_ENDED}` : numbered(shown, 'requests')];
}

/** How a request ended, for its own page. */
function endedList(row) {
  const note = OUTCOME_NOTES[row[ENDED.outcome]];
  const shown = ENDED_COLUMNS.slice(1).map((column) => [column.title, orError(column.title, () => (column.kind === 'time' ? clockText(column.title === 'Ended' ? row[ENDED.at] : row[ENDED.created]) : column.cell(row)))]);
  return [el('dl', {}, shown.filter(([, value]) => value !== '').flatMap(([title, value]) => [el('dt', {}, title), el('dd', {}, value)])),
    note ? el('p', { class: 'quiet' }, note) : null];
}

function uploadRow(upload) {
  return el('tr', {}, el('td', { class: 'mono' }, `↳ ${upload.id}`), el('td', {}, stateText(upload.state)), el('td', {}, ageText(upload.since)),
    el('td', {}, `${upload.provider}${upload.name ? `: ${upload.name}` : ''}`));
}

function buildRow(build) {
  return el('tr', {}, el('td', { class: 'mono' }, build.id), el('td', {}, stateText(build.state)), el('td', {}, ageText(build.since)),
    el('td', {}, `${build.builder || ''} ${build.formats || ''}`));
}

const rowOrError = (id, make) => {
  const row = orError(id, make);
  return row.tagName === 'TR' ? row : el('tr', {}, el('td', { colspan: 4 }, row));
};

function imageParts(image) {
  const rows = asArray(image.builds).flatMap((build) => [rowOrError(build.id, () => buildRow(build)),
    ...asArray(build.uploads).map((upload) => rowOrError(upload.id, () => uploadRow(upload)))]);
  const headers = ['Build or upload', 'State', 'For', 'Where'].map((title) => el('th', { scope: 'col' }, title));
  return [image.paused ? el('p', {}, stateText('paused'), ' by command') : null,
    image.request ? el('p', {}, `build requested: ${image.request}`) : null,
    rows.length ? el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, headers)), el('tbody', {}, rows))) : el('p', { class: 'quiet' }, 'no builds')];
}

function imagesView() {
  const body = el('div', { class: 'grid' });
  const draw = () => {
    if (!state.images.length) return reconcileChildren(body, el('p', { class: 'quiet' }, 'No images have been built.'));
    reconcileChildren(body, state.images.map((image) => panelOf(image.name, () => imageParts(image))));
  };
  return { title: 'Images', element: el('div', {}, el('h2', {}, 'Images, builds and uploads'), body), draw };
}

function callsText(calls) {
  if (calls.count === 0) return 'no recent calls';
  if (!Number.isFinite(calls.count)) return NONE;
  const slow = calls.p95_s === null ? 'more than a minute' : duration(calls.p95_s);
  return `${numbered(calls.count, 'calls')} in ${duration(calls.window_s)} (${numberText(calls.count * 60 / Math.max(1, calls.window_s))} a minute), `
    + `mean ${duration(calls.mean_s)}, 95 % within ${slow}, ${numberText(100 * calls.failed / calls.count)} % failed`;
}

function poolText(pool) {
  const bound = pool.max_servers === null ? 'no limit of its own' : `at most ${textOrDash(pool.max_servers)} ${pool.max_servers === 1 ? 'server' : 'servers'}`;
  return `${bound}; ${Array.isArray(pool.labels) ? pool.labels.join(', ') || 'no labels' : `labels ${NONE}`}`;
}

function stateLinks(provider) {
  if (provider.nodes !== asObject(provider.nodes)) return NONE;
  const links = Object.entries(asObject(provider.nodes)).map(([name, number]) => el('a', { href: `#/nodes?${new URLSearchParams({ state: name, provider: textOrDash(provider.name) })}` }, `${textOrDash(number)} ${name}`));
  return links.length ? links.flatMap((state) => [state, ' ']) : 'none';
}

function refreshedText(provider) {
  if (provider.refreshed_at === undefined) return NONE;
  return provider.refreshed_at ? [ageText(provider.refreshed_at), ' ago'] : 'not yet: the first refresh has not ended';
}

/** Text instead of the quota of a provider without any. */
function quotaAbsence(provider) {
  if (!Array.isArray(provider.quotas)) return 'Not reported by this launcher, which may have another version.';
  if (provider.running === false) return 'Not known: the provider is not running. It is starting, or its configuration is invalid; the log of its launcher says so then.';
  if (provider.unavailable) return `Not known: ${provider.unavailable}`;
  const failed = asArray(provider.failed_queries).filter((query) => /limits/.test(query));
  if (failed.length) return `Not known: the cloud did not answer, or refuses, the query for ${failed.join(' and ')}. It is repeated.`;
  if (!provider.refreshed_at) return 'Not known yet: the first refresh of the provider has not ended.';
  if (provider.driver === 'static') return 'None: a static provider is limited by its hosts only, and none of them is registered yet.';
  return 'None: the cloud reports no limits, and no node uses it.';
}

function quotaPart(provider) {
  return asArray(provider.quotas).length ? quotaLines(provider.quotas) : el('p', { class: 'quiet' }, quotaAbsence(provider));
}

/** Another launcher may have another version: missing values are shown as dashes. */
function providerParts(launcher, provider) {
  return [el('p', { class: 'quiet' }, `${textOrDash(provider.driver)}, by ${launcher}`, provider.spacing_s ? `, ${textOrDash(provider.spacing_s)} s between two calls` : ''),
    provider.unavailable ? el('p', { class: 'bad' }, String(provider.unavailable)) : null,
    ...asArray(provider.conditions).map(asObject).map((condition) => el('p', { class: 'bad' }, 'For ', ageText(condition.since), `: ${textOrDash(condition.text)}`)),
    el('dl', {},
      el('dt', {}, 'Nodes'), el('dd', {}, stateLinks(provider)),
      el('dt', {}, 'API'), el('dd', {}, callsText(asObject(provider.calls))),
      el('dt', {}, 'Last refreshed'), el('dd', {}, refreshedText(provider)),
      Array.isArray(provider.pools) ? provider.pools.map(asObject).flatMap((pool) => [el('dt', {}, `Pool ${textOrDash(pool.name)}`), el('dd', {}, poolText(pool))])
        : [el('dt', {}, 'Pools'), el('dd', {}, NONE)]),
    ...backingPart(asArray(provider.backing_nodes).map(asObject)),
    el('h3', {}, 'Quota'), quotaPart(provider)];
}

/** Backing nodes of a metastatic provider, with the nodes in their slots. */
function backingPart(nodes) {
  if (!nodes.length) return [];
  const rows = nodes.flatMap((node) => [
    el('dt', {}, link('node', textOrDash(node.node)), ` ${textOrDash(node.label)}`),
    el('dd', {}, `${asArray(node.occupants).length} of ${textOrDash(node.slots)} slots`, node.retired ? ', retired' : '', releaseText(node), ...asArray(node.occupants).map(asArray).flatMap(([slot, id]) => [el('br', {}), `${slot}: `, link('node', textOrDash(id))])),
  ]);
  return [el('h3', {}, 'Backing nodes'), el('dl', {}, rows)];
}

function releaseText(node) {
  if (typeof node.released_in_s !== 'number') return '';
  return `, idle for ${textOrDash(node.idle_s)} s, released in ${node.released_in_s} s`;
}

function launcherPanels(launcher) {
  const name = textOrDash(launcher.launcher);
  if (launcher.error) return [panel(name, el('p', { class: 'bad' }, `No metrics from this launcher: ${launcher.error}.`))];
  const providers = asArray(launcher.providers).map(asObject);
  if (providers.length) return providers.map((provider) => panelOf(textOrDash(provider.name), () => providerParts(name, provider)));
  return [panel(name, el('p', { class: 'quiet' }, noProviders(launcher)))];
}

function noProviders(launcher) {
  return Array.isArray(launcher.providers) ? 'The configuration of this launcher has no providers.' : 'This launcher does not report its providers; it may have another version.';
}

const launchersOf = (metrics) => asArray(asObject(metrics).launchers).map(asObject);

function providersView() {
  const body = el('div', { class: 'grid' });
  let drawn = null;
  const draw = () => {
    if (state.metrics && drawn === state.metrics) return;
    drawn = state.metrics;
    reconcileChildren(body, drawn ? launchersOf(drawn).flatMap(launcherPanels) : el('p', { class: 'quiet' }, metricsAbsence()));
  };
  return { title: 'Providers', element: el('div', {}, el('h2', {}, 'Providers'), body), draw, needs: 'metrics' };
}

const overviewRows = () => (matchMedia('(max-width: 640px)').matches ? MAX_OVERVIEW_ROWS_PHONE : MAX_OVERVIEW_ROWS);

/** Nodes by state, and by label and provider. */
function countNodes() {
  const [counts, groups] = [new Map(), new Map()];
  for (const row of state.nodes.values()) {
    counts.set(row[NODE.state], (counts.get(row[NODE.state]) || 0) + 1);
    for (const label of asArray(row[NODE.labels])) {
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

const WAITING_COLUMNS = [
  { title: 'Request', cell: (row) => link('request', row[REQUEST.id]) },
  { title: 'Age', kind: 'number', cell: (row) => ageText(row[REQUEST.created]) },
  { title: 'Labels', kind: 'labels', cell: (row) => row[REQUEST.labels].join(', ') },
  { title: 'Verdict and reason', kind: 'quiet', cell: verdictCell },
];

function waitingRow(row) {
  return el('tr', {}, WAITING_COLUMNS.map((column) => el('td', { class: column.kind, 'data-label': column.title }, orError(row[REQUEST.id], () => column.cell(row)))));
}

function waitingTable(waiting, limit) {
  if (!waiting.length) return [el('p', { class: 'quiet' }, 'No request waits.')];
  const headers = WAITING_COLUMNS.map((column) => el('th', { scope: 'col', class: column.kind === 'number' ? 'number' : null }, column.title));
  return [el('p', { class: 'quiet' }, waiting.length > limit ? `the oldest ${limit} of ${waiting.length.toLocaleString()}` : numbered(waiting.length, 'requests')),
    el('div', { class: 'table' }, el('table', { class: 'stack' }, el('thead', {}, el('tr', {}, headers)), el('tbody', {}, waiting.slice(0, limit).map(waitingRow))))];
}

function groupRow([key, group]) {
  const [label, provider] = JSON.parse(key);
  const query = new URLSearchParams({ label, ...(provider ? { provider } : {}) });
  return el('tr', {}, el('td', {}, el('a', { href: `#/nodes?${query}` }, label)), el('td', {}, provider || ''),
    [group.total, group.ready, group.used].map((number) => el('td', { class: 'number' }, String(number))));
}

function groupTable(groups) {
  if (!groups.size) return el('p', { class: 'quiet' }, 'No nodes.');
  const headers = ['Label', 'Provider', 'Nodes', 'Ready', 'In use'].map((title, i) => el('th', { scope: 'col', class: i > 1 ? 'number' : '' }, title));
  return el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, headers)), el('tbody', {}, [...groups].sort().slice(0, 30).map(groupRow))));
}

/** Quota of each provider of a launcher, or the reason why it is not known. */
function launcherQuotas(launcher, isOnly) {
  const name = textOrDash(launcher.launcher);
  if (launcher.error) return [el('h3', {}, `Launcher ${name}`), el('p', { class: 'bad' }, `Not known: ${launcher.error}.`)];
  const providers = asArray(launcher.providers).map(asObject);
  if (!providers.length) return [el('h3', {}, `Launcher ${name}`), el('p', { class: 'quiet' }, noProviders(launcher))];
  return providers.flatMap((provider) => [el('h3', {}, textOrDash(provider.name), isOnly ? null : el('span', { class: 'quiet' }, ` by ${name}`)),
    orError(textOrDash(provider.name), () => quotaPart(provider))]);
}

const metricsAbsence = () => (failing.metrics ? `This launcher did not report its providers yet; the next report follows within ${METRICS_INTERVAL_S} s.` : 'Loading…');

/** Sets the content of one panel; a failure does not affect the others. */
function fill(element, what, make) {
  reconcileChildren(element, orError(what, make));
}

function overviewView() {
  const tiles = el('div', { class: 'tiles' });
  const open = el('div');
  const [states, waits, launches] = [0, 1, 2].map(() => el('div', {}, el('p', { class: 'quiet' }, 'Loading…')));
  const quota = el('div');
  const labels = el('div');
  const ended = endedTable(overviewRows);
  let [drawnChart, metrics, lastDrawn] = ['', null, ''];
  const element = el('div', { class: 'grid' },
    el('section', { class: 'panel wide' }, el('h2', {}, 'Nodes by state'), tiles),
    panel('Nodes over time', states), panel('Waiting requests', open),
    el('section', { class: 'panel wide' }, el('h2', {}, ENDED_TITLE), ended.element),
    panel('Time from request to ready nodes', waits), panel('Launch duration', launches),
    panel('Quota', quota), panel('Nodes by label and provider', labels));
  const drawRows = () => {
    const [counts, groups] = countNodes();
    const waiting = requestRows().filter(isOpen).sort((a, b) => a[REQUEST.created] - b[REQUEST.created]);
    const [limit, oldest] = [overviewRows(), waiting.slice(0, overviewRows())];
    const text = JSON.stringify([[...counts], [...groups], limit, oldest, waiting.length, oldest.map((row) => attempt(() => verdictCell(row), ''))]);
    if (text === lastDrawn) return;
    lastDrawn = text;
    fill(tiles, 'The states', () => stateTiles(counts));
    fill(open, 'The waiting requests', () => waitingTable(waiting, limit));
    fill(labels, 'The labels', () => groupTable(groups));
  };
  const drawCharts = () => {
    const { timeseries } = state;
    const text = `${timeseriesLoads} ${states.clientWidth}`;
    if (!timeseries || drawnChart === text) return;
    drawnChart = text;
    const width = states.clientWidth || DEFAULT_CHART_WIDTH;
    fill(states, 'The chart', () => statesChart(timeseries, width));
    fill(waits, 'The chart', () => durationsChart(timeseries.waits, 'requests', width));
    fill(launches, 'The chart', () => durationsChart(timeseries.launches, 'launches', width));
  };
  const drawQuotas = () => {
    if (state.metrics && metrics === state.metrics) return;
    metrics = state.metrics;
    const launchers = launchersOf(metrics);
    fill(quota, 'The quota', () => (metrics ? launchers.flatMap((launcher) => launcherQuotas(launcher, launchers.length === 1)) : el('p', { class: 'quiet' }, metricsAbsence())));
  };
  const draw = () => { drawRows(); ended.draw(); drawCharts(); drawQuotas(); };
  // The charts depend on the width of their panels.
  new ResizeObserver(() => { if (state.loaded) drawCharts(); }).observe(states);
  return { title: 'Overview', element, draw, needs: 'timeseries' };
}

function eventItem(event) {
  return el('li', {}, clockText(event.at), ' ',
    event.node ? ['node ', link('node', event.node)] : ['request ', link('request', event.request)], ' ',
    event.state ? stateText(event.state) : 'deleted',
    event.node && event.request ? [' for ', link('request', event.request)] : null);
}

function historyList(events) {
  if (!events.length) return el('p', { class: 'quiet' }, 'No changes were observed in this time.');
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

/** The fields of a record that are set. */
function recordList(record) {
  const shown = Object.entries(record).filter(([, value]) => value !== null && value !== '' && !(Array.isArray(value) && !value.length));
  return el('dl', {}, shown.flatMap(([key, value]) => [el('dt', {}, key), el('dd', {}, orError(key, () => recordValue(key, value)))]));
}

function reasonsTable(record, reasons) {
  if (!reasons.length) {
    const isDecided = record.state === 'fulfilled' || record.state === 'failed';
    return el('p', { class: 'quiet' }, isDecided ? 'None: pools of another launcher decided about this request, or this launcher was restarted since.'
      : `None yet: each pool decides within seconds. The command “nodepool why ${record.id}” also asks the other launchers.`);
  }
  const headers = ['Pool', 'Verdict', 'Reason', 'Since'].map((name) => el('th', { scope: 'col' }, name));
  const rows = reasons.map((verdict) => el('tr', {}, el('td', {}, verdict.pool), el('td', {}, verdict.verdict), el('td', {}, verdict.reason), el('td', {}, clockText(verdict.since))));
  return el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, headers)), el('tbody', {}, rows)));
}

function detailPanels(kind, id, found) {
  const events = asArray(found.events);
  const ended = endedOf(kind, id);
  if (!found.record && !events.length && !ended) return [el('p', { class: 'bad' }, `There is no ${kind} ${id}, and there was none since `, clockText(found.since), '.')];
  const panels = [panelOf('Record', () => (found.record ? recordList(found.record) : el('p', {}, 'It was deleted.'))),
    ended ? panelOf('How it ended', () => endedList(ended)) : null,
    panelOf('History', () => [historyList(events), el('p', { class: 'quiet' }, 'since ', clockText(found.since))])];
  if (kind === 'request' && found.record) panels.push(panelOf('Verdicts of the pools of this launcher', () => reasonsTable(found.record, asArray(found.reasons))));
  return panels;
}

/** The last end of a request, if it is among the last ended ones. */
const endedOf = (kind, id) => (kind === 'request' && state.ended.findLast((row) => row[ENDED.id] === id)) || null;

function detailView(kind, id) {
  const title = `${kind === 'node' ? 'Node' : 'Request'} ${id}`;
  const body = el('div', { class: 'grid' }, el('p', { class: 'quiet' }, 'Loading…'));
  let [shownRow, requestCount, lastText] = ['', 0, ''];
  // Responses may arrive out of order; only that of the newest request is shown.
  const load = async () => {
    requestCount += 1;
    const number = requestCount;
    const response = await fetch(`/api/${kind}/${encodeURIComponent(id)}`);
    const text = response.ok ? await response.text() : '';
    if (number !== requestCount) return;
    if (response.status === 404) return body.replaceChildren(el('p', { class: 'bad' }, `There is no ${kind} ${id}.`));
    if (!response.ok) throw new Error(`The server responded with ${response.status}.`);
    if (text + shownRow === lastText) return;
    reconcileChildren(body, detailPanels(kind, id, JSON.parse(text)));
    lastText = text + shownRow;
  };
  const draw = () => {
    // Reasons change without a change of the request, so its page is also loaded after each metrics event.
    const reasons = kind === 'request' && state.requests.has(id) && state.metrics ? state.metrics.now : 0;
    const row = JSON.stringify([(kind === 'node' ? state.nodes : state.requests).get(id) || null, reasons, endedOf(kind, id)]);
    if (row === shownRow) return;
    shownRow = row;
    load().catch((error) => {
      if (row !== shownRow) return;
      if (!lastText) body.replaceChildren(el('p', { class: 'bad' }, `${title} cannot be shown yet: ${error.message}`));
      setTimeout(() => { if (row === shownRow && body.isConnected) { shownRow = ''; draw(); } }, 5000);
    });
  };
  return { title, element: el('div', {}, el('h2', {}, title), body), draw };
}

// --- routes --------------------------------------------------------------------------------------------------------------

const VIEWS = { overview: overviewView, nodes: nodesView, requests: requestsView, ended: endedView, images: imagesView, providers: providersView };

function notFoundView() {
  const element = el('section', { class: 'panel' }, el('h2', {}, 'There is no such page'), el('p', {}, el('a', { href: '#/' }, 'To the overview')));
  return { title: 'No such page', element, draw: () => {} };
}

/** View of an address, which may contain any text. */
function viewFor(name, id) {
  if (name === 'node' || name === 'request') {
    try {
      return id ? detailView(name, decodeURIComponent(id)) : notFoundView();
    } catch {
      return notFoundView();
    }
  }
  return Object.hasOwn(VIEWS, name || 'overview') ? VIEWS[name || 'overview']() : notFoundView();
}

function route(moved) {
  const [path] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, id] = path.split('/');
  const known = Object.hasOwn(VIEWS, name);
  view = viewFor(name, id);
  const at = name === 'node' ? 'nodes' : name === 'request' || name === 'ended' ? 'requests' : known ? name : name ? '' : 'overview';
  for (const anchor of document.querySelectorAll('nav a')) {
    if (anchor.dataset.view === at) anchor.setAttribute('aria-current', 'page');
    else anchor.removeAttribute('aria-current');
  }
  document.title = `${view.title} – Nodepool`;
  main.replaceChildren(view.element);
  if (moved) main.focus();
  if (view.needs === 'timeseries') ignoreErrors(loadTimeseries());
  draw();
}

let [drawing, drawn, nextDrawAt] = [false, false, 0];

/** Draws after a pause of fifty times the duration of the last drawing, so that frequent changes use little CPU. */
function draw() {
  if (drawing || !state.loaded) return;
  drawing = true;
  setTimeout(() => requestAnimationFrame(drawNow), Math.max(0, nextDrawAt - performance.now()));
}

function drawNow() {
  drawing = false;
  if (document.hidden) return;
  const startedAt = performance.now();
  document.getElementById('count-nodes').textContent = state.nodes.size.toLocaleString();
  document.getElementById('count-requests').textContent = requestRows().filter(isOpen).length.toLocaleString();
  view.draw();
  document.documentElement.dataset.revision = state.revision;
  if (!drawn) { drawn = true; performance.mark('drawn'); }
  nextDrawAt = performance.now() + Math.min(2000, 50 * (performance.now() - startedAt));
}

function tick() {
  if (document.hidden) return;
  for (const element of main.querySelectorAll('time[data-since]')) {
    const text = duration(Math.floor(now() - Number(element.dataset.since)));
    if (element.textContent !== text) element.textContent = text;
  }
}

// --- server connection ---------------------------------------------------------------------------------------------------

function setStatus(text, lost) {
  const element = document.getElementById('connection');
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle('lost', Boolean(lost));
}

/** Shows the state of the connection in one line. */
function updateConnectionStatus() {
  if (failing.stream) setStatus('no connection to the launcher, retrying', true);
  else if (failing.load) setStatus('the server does not respond, retrying', true);
  else if (loading || !state.loaded) return;
  else if (state.connected) setStatus('live');
  else setStatus('live, but ZooKeeper is not responding: data may be stale', true);
}

function apply(patch) {
  if (patch.revision <= state.revision) return;
  // A patch in between is missing, so the full state is loaded.
  if (patch.from > state.revision) return void loadState();
  for (const row of patch.nodes.upserted) state.nodes.set(row[0], row);
  for (const id of patch.nodes.removed) state.nodes.delete(id);
  for (const row of patch.requests.upserted) state.requests.set(row[0], row);
  for (const id of patch.requests.removed) state.requests.delete(id);
  if (patch.images) state.images = patch.images;
  if (patch.ended) state.ended = [...state.ended, ...patch.ended].slice(-MAX_ENDED);
  state.revision = patch.revision;
  state.connected = patch.connected;
  updateConnectionStatus();
  draw();
}

/** Loads the full state, with retries at growing intervals. Only the newest of concurrent loads counts. */
async function loadState(wait = 1) {
  loadGeneration += 1;
  const generation = loadGeneration;
  loading = true;
  pendingPatches = [];
  try {
    const response = await fetch('/api/state', { signal: AbortSignal.timeout(LOAD_TIMEOUT_MS) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const fullState = await response.json();
    if (generation === loadGeneration) applyState(fullState);
  } catch {
    if (generation !== loadGeneration) return;
    failing.load = true;
    updateConnectionStatus();
    setTimeout(() => { if (generation === loadGeneration) loadState(Math.min(15, wait * 2)); }, wait * 1000);
  }
}

function applyState(fullState) {
  const [nodes, requests] = [fullState.nodes, fullState.requests].map((rows) => new Map(rows.map((row) => [row[0], row])));
  Object.assign(state, { nodes, requests, images: asArray(fullState.images), ended: asArray(fullState.ended), revision: fullState.revision, connected: fullState.connected, loaded: true });
  loading = false;
  failing.load = false;
  const waiting = pendingPatches;
  pendingPatches = [];
  waiting.forEach(receivePatch);
  updateConnectionStatus();
  draw();
}

/** Applies a patch, or keeps it until the state that is being loaded has arrived. */
function receivePatch(patch) {
  if (!loading) apply(patch);
  // Dropping the first patches leaves a gap, which triggers another load.
  else if (pendingPatches.push(patch) > MAX_PENDING_PATCHES) pendingPatches.shift();
}

function applyMetrics(metrics) {
  state.metrics = metrics;
  if (Number.isFinite(metrics.now)) clockSkew = metrics.now - Date.now() / 1000;
  document.getElementById('since').replaceChildren('History since ', clockText(metrics.since), '.');
  draw();
}

async function loadMetrics() {
  try {
    const response = await fetch('/api/metrics');
    if (!response.ok) throw new Error(`status ${response.status}`);
    applyMetrics(await response.json());
  } catch {
    failing.metrics = true;
    draw();
  }
}

async function loadTimeseries() {
  const response = await fetch('/api/timeseries');
  if (response.ok) {
    state.timeseries = await response.json();
    timeseriesLoads += 1;
  }
  draw();
}

/** For requests that are repeated within seconds anyway. */
const ignoreErrors = (promise) => promise.catch(() => {});

function connect() {
  const events = new EventSource('/api/stream');
  events.addEventListener('hello', () => { failing.stream = false; loadState(); loadMetrics(); });
  events.addEventListener('reload', () => loadState());
  events.addEventListener('patch', (event) => receivePatch(JSON.parse(event.data)));
  events.addEventListener('metrics', (event) => applyMetrics(JSON.parse(event.data)));
  events.onerror = () => {
    failing.stream = true;
    updateConnectionStatus();
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
setInterval(() => { if (view && view.needs === 'timeseries' && !document.hidden) ignoreErrors(loadTimeseries()); }, 15000);
route(false);
connect();
