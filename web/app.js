// The live page: one copy of the state, patched by server-sent events; the view in front is drawn anew when it changed.
// Whatever comes from records goes in as text, never as markup.

const STATES = ['init', 'building', 'testing', 'ready', 'in-use', 'used', 'hold', 'deleting', 'failed', 'aborted', 'deleted'];
const PAGE = 100; // rows in front at a time
const NODE = { id: 0, state: 1, since: 2, provider: 3, pool: 4, labels: 5, address: 6, locked: 7, request: 8, comment: 9, zone: 10, host: 11 };
const REQUEST = { id: 0, state: 1, since: 2, requestor: 3, labels: 4, nodes: 5, declined: 6, event: 7, priority: 8, created: 9 };

const state = { nodes: new Map(), requests: new Map(), images: [], revision: -1, connected: false, loaded: false, figures: null, plots: null };
const main = document.getElementById('main');
let skew = 0; // the server's clock less ours, in seconds
let view = null;
let early = []; // patches that came before the state they belong to
const MOST_EARLY = 1000;
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

function duration(seconds) {
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
  const element = el('time', { 'data-since': since, datetime: date.toISOString() });
  element.textContent = duration(Math.floor(now() - since));
  return element;
}

function clockText(at) {
  const date = dateOf(at);
  if (!date) return el('span', { class: 'quiet' }, String(at));
  return el('time', { datetime: date.toISOString(), title: date.toISOString() }, date.toLocaleString());
}

const numberText = (value) => (Math.abs(value) >= 100 ? Math.round(value) : Math.round(value * 100) / 100).toLocaleString();

/** What `make` makes, or a word in its place: one odd record hides nothing but itself. */
function orWord(what, make) {
  try {
    return make();
  } catch (error) {
    return el('p', { class: 'bad' }, `${what} cannot be shown: ${error.message}`);
  }
}

function panel(title, ...children) {
  return el('section', { class: 'panel' }, el('h2', {}, title), ...children);
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
    this.summary = el('p', { class: 'quiet', role: 'status' });
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
    const found = all.filter((row) => this.filters.every((filter, index) => !chosen[index] || filter.has(row, chosen[index]))
      && (!text || row.some((cell) => cell !== null && String(cell).toLowerCase().includes(text))));
    const { value } = this.columns[this.sort.column];
    const order = this.sort.down ? -1 : 1;
    // Rows come by their ids, and new ones have higher ids.
    if (this.sort.column !== 0 || this.sort.down) found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return order * (x < y ? -1 : x > y ? 1 : a[0] < b[0] ? -1 : 1);
    });
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const front = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.summary.textContent = all.length === 0 ? this.empty
      : found.length === all.length ? `${all.length.toLocaleString()} ${this.key}` : `${found.length.toLocaleString()} of ${all.length.toLocaleString()} ${this.key}`;
    this.where.textContent = pages > 1 ? `page ${this.page + 1} of ${pages}` : '';
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.back.hidden = this.next.hidden = pages === 1;
    this.heads.forEach((head, index) => head.setAttribute('aria-sort',
      index !== this.sort.column ? 'none' : this.sort.down ? 'descending' : 'ascending'));
    this.place(front);
  }

  place(front) {
    const kept = new Map();
    let at = this.body.firstChild;
    for (const row of front) {
      let line = this.kept.get(row[0]);
      const text = JSON.stringify(row) + (this.extra ? this.extra(row) : '');
      if (!line || line.text !== text) {
        const cells = this.columns.map((column) => el('td', { class: column.kind, 'data-label': column.title }, orWord(row[0], () => column.cell(row))));
        if (line) {
          line.element.replaceChildren(...cells);
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

function quotaLines(quotas) {
  return el('div', { class: 'quota' }, quotas.flatMap((quota) => {
    const used = quota.ours + quota.others;
    const name = `${quota.resource}`;
    const text = quota.limit === null ? `${numberText(used)} used, no limit`
      : `${numberText(used)} used, ${numberText(Math.max(0, quota.limit - used))} free of ${numberText(quota.limit)}`;
    const bar = quota.limit === null ? el('span')
      : el('meter', { min: 0, max: Math.max(quota.limit, 1), high: quota.limit * 0.9, value: Math.min(used, quota.limit), 'aria-label': `${name}: ${text}` });
    return [el('span', {}, name), bar, el('span', { class: 'quiet', title: `ours ${numberText(quota.ours)}, others ${numberText(quota.others)}` }, text)];
  }));
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
      { name: 'label', title: 'Label', values: () => nodeRows().flatMap((row) => row[NODE.labels]), has: (row, value) => row[NODE.labels].includes(value) },
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

function verdictOf(row) {
  const reasons = (state.figures && state.figures.reasons[row[REQUEST.id]]) || [];
  const order = ['accept', 'defer', 'yield', 'decline', 'ignore'];
  return [...reasons].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict))[0] || null;
}

function verdictCell(row) {
  if (!isOpen(row)) return '';
  const verdict = verdictOf(row);
  if (verdict) return `${verdict.verdict}: ${verdict.reason} (${verdict.pool})`;
  // Reasons are gathered of the oldest ones only; each request's own page has its own.
  return state.figures && Object.hasOwn(state.figures.reasons, row[REQUEST.id]) ? 'no pool has decided yet' : 'see its page';
}

function requestColumns() {
  return [
    { title: 'Request', value: (row) => row[REQUEST.id], cell: (row) => link('request', row[REQUEST.id]) },
    { title: 'State', value: (row) => row[REQUEST.state], cell: (row) => stateText(row[REQUEST.state]) },
    { title: 'Age', kind: 'number', value: (row) => -row[REQUEST.created], cell: (row) => ageText(Math.floor(row[REQUEST.created])) },
    { title: 'Labels', value: (row) => row[REQUEST.labels].join(), cell: (row) => row[REQUEST.labels].join(', ') },
    { title: 'Requestor', value: (row) => row[REQUEST.requestor] || '', cell: (row) => row[REQUEST.requestor] || '' },
    { title: 'Priority', kind: 'number', value: (row) => row[REQUEST.priority], cell: (row) => String(row[REQUEST.priority]) },
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
      { name: 'label', title: 'Label', values: () => requestRows().flatMap((row) => row[REQUEST.labels]), has: (row, value) => row[REQUEST.labels].includes(value) },
      { name: 'requestor', title: 'Requestor', values: () => requestRows().map((row) => row[REQUEST.requestor]).filter(Boolean), has: (row, value) => row[REQUEST.requestor] === value },
    ],
  });
  list.extra = verdictCell;
  return { title: 'Requests', element: el('div', {}, el('h2', {}, 'Requests'), list.element), draw: () => list.draw() };
}

function imagesView() {
  const body = el('div', { class: 'grid' });
  const draw = () => {
    if (!state.images.length) return body.replaceChildren(el('p', { class: 'quiet' }, 'No builder has built an image here.'));
    body.replaceChildren(...state.images.map((image) => orWord(image.name, () => panel(image.name,
      image.paused ? el('p', {}, stateText('paused'), ' by command') : null,
      image.request ? el('p', {}, `a build is asked for: ${image.request}`) : null,
      image.builds.length ? el('div', { class: 'table' }, el('table', {},
        el('thead', {}, el('tr', {}, ['Build or upload', 'State', 'For', 'Where'].map((title) => el('th', { scope: 'col' }, title)))),
        el('tbody', {}, image.builds.flatMap((build) => [
          el('tr', {}, el('td', { class: 'mono' }, build.id), el('td', {}, stateText(build.state)), el('td', {}, ageText(Math.floor(build.since))),
            el('td', {}, `${build.builder || ''} ${build.formats}`)),
          ...(build.uploads || []).map((upload) => el('tr', {}, el('td', { class: 'mono' }, `↳ ${upload.id}`), el('td', {}, stateText(upload.state)),
            el('td', {}, ageText(Math.floor(upload.since))), el('td', {}, `${upload.provider}${upload.name ? `: ${upload.name}` : ''}`)))])))) : el('p', { class: 'quiet' }, 'no builds')))));
  };
  return { title: 'Images', element: el('div', {}, el('h2', {}, 'Images, builds and uploads'), body), draw };
}

function providerPanel(launcher, provider) {
  const calls = provider.calls;
  const said = calls.count ? `${calls.count} calls in ${duration(calls.window_s)} (${numberText(calls.count * 60 / Math.max(1, calls.window_s))} a minute), mean ${duration(calls.mean_s)}, 95 % within ${calls.p95_s === null ? 'more than a minute' : duration(calls.p95_s)}, ${numberText(100 * calls.failed / calls.count)} % failed`
    : 'no calls lately';
  const nodes = Object.entries(provider.nodes);
  return panel(provider.name,
    el('p', { class: 'quiet' }, `${provider.driver}, by ${launcher}`, provider.spacing_s ? `, ${provider.spacing_s} s between two calls` : ''),
    provider.trouble ? el('p', { class: 'bad' }, provider.trouble) : null,
    el('dl', {},
      el('dt', {}, 'Nodes'), el('dd', {}, nodes.length ? nodes.map(([name, number]) => el('a', { href: `#/nodes?state=${name}&provider=${encodeURIComponent(provider.name)}` }, `${number} ${name} `)) : 'none'),
      el('dt', {}, 'API'), el('dd', {}, said),
      el('dt', {}, 'Looked at'), el('dd', {}, provider.seen_at ? [ageText(Math.floor(provider.seen_at)), ' ago'] : 'not yet'),
      provider.pools.flatMap((pool) => [el('dt', {}, `Pool ${pool.name}`), el('dd', {}, `${pool.max_servers === null ? 'no limit of its own' : `at most ${pool.max_servers} servers`}; ${pool.labels.join(', ') || 'no labels'}`)])),
    el('h3', {}, 'Quota'), provider.quotas.length ? quotaLines(provider.quotas) : el('p', { class: 'quiet' }, 'none known'));
}

function providersView() {
  const body = el('div', { class: 'grid' });
  let drawn = null;
  const draw = () => {
    if (drawn === state.figures) return;
    drawn = state.figures;
    const launchers = drawn ? drawn.launchers : [];
    body.replaceChildren(...launchers.flatMap((launcher) => (launcher.missing
      ? [panel(launcher.launcher, el('p', { class: 'bad' }, `No figures of this launcher: ${launcher.missing}.`))]
      : launcher.providers.length ? launcher.providers.map((provider) => orWord(provider.name, () => providerPanel(launcher.launcher, provider)))
        : [panel(launcher.launcher, el('p', { class: 'quiet' }, 'This launcher has no providers.'))])));
  };
  return { title: 'Providers', element: el('div', {}, el('h2', {}, 'Providers'), body), draw, needs: 'figures' };
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
  const draw = () => {
    const counts = new Map();
    const groups = new Map();
    for (const row of state.nodes.values()) {
      counts.set(row[NODE.state], (counts.get(row[NODE.state]) || 0) + 1);
      for (const label of row[NODE.labels]) {
        const key = JSON.stringify([label, row[NODE.provider]]);
        const group = groups.get(key) || { total: 0, ready: 0, used: 0 };
        group.total += 1;
        if (row[NODE.state] === 'ready') group.ready += 1;
        if (row[NODE.state] === 'in-use') group.used += 1;
        groups.set(key, group);
      }
    }
    const waiting = requestRows().filter(isOpen).sort((a, b) => a[REQUEST.created] - b[REQUEST.created]);
    const text = JSON.stringify([[...counts], [...groups], waiting.slice(0, 10), waiting.length, waiting.slice(0, 10).map(verdictCell)]);
    if (text !== said) {
      said = text;
      tiles.replaceChildren(el('a', { class: 'tile', href: '#/nodes' }, el('b', {}, state.nodes.size.toLocaleString()), 'all nodes'),
        ...STATES.filter((name) => counts.get(name) || ['building', 'ready', 'in-use'].includes(name)).map((name) => el('a', { class: `tile tone-${name}`, href: `#/nodes?state=${name}` },
          el('b', {}, (counts.get(name) || 0).toLocaleString()), name)));
      open.replaceChildren(...(waiting.length ? [el('p', { class: 'quiet' }, waiting.length > 10 ? `the oldest 10 of ${waiting.length.toLocaleString()}` : `${waiting.length}`),
        el('div', { class: 'table' }, el('table', { class: 'stack' }, el('tbody', {}, waiting.slice(0, 10).map((row) => el('tr', {}, el('td', {}, link('request', row[REQUEST.id])),
          el('td', { class: 'number' }, ageText(Math.floor(row[REQUEST.created]))), el('td', {}, row[REQUEST.labels].join(', ')), el('td', { class: 'quiet' }, verdictCell(row)))))))]
        : [el('p', { class: 'quiet' }, 'None.')]));
      labels.replaceChildren(groups.size ? el('div', { class: 'table' }, el('table', {}, el('thead', {}, el('tr', {}, ['Label', 'Provider', 'Nodes', 'Ready', 'In use'].map((title, i) => el('th', { scope: 'col', class: i > 1 ? 'number' : '' }, title)))),
        el('tbody', {}, [...groups].sort().slice(0, 30).map(([key, group]) => {
          const [label, provider] = JSON.parse(key);
          const query = new URLSearchParams({ label, ...(provider ? { provider } : {}) });
          return el('tr', {}, el('td', {}, el('a', { href: `#/nodes?${query}` }, label)), el('td', {}, provider || ''), [group.total, group.ready, group.used].map((number) => el('td', { class: 'number' }, String(number))));
        })))) : el('p', { class: 'quiet' }, 'No nodes.'));
    }
    if (state.plots && plots !== state.plots) {
      plots = state.plots;
      states.replaceChildren(statesPlot(plots));
      waits.replaceChildren(waitsPlot(plots.waits, 'requests'));
      launches.replaceChildren(waitsPlot(plots.launches, 'launches'));
    }
    if (state.figures && figures !== state.figures) {
      figures = state.figures;
      quota.replaceChildren(...figures.launchers.flatMap((launcher) => (launcher.missing
        ? [el('p', { class: 'bad' }, `${launcher.launcher}: no figures, ${launcher.missing}.`)]
        : launcher.providers.filter((provider) => provider.quotas.length).flatMap((provider) => [el('h3', {}, provider.name), orWord(provider.name, () => quotaLines(provider.quotas))]))));
      if (!quota.firstChild) quota.append(el('p', { class: 'quiet' }, 'No limits are known.'));
    }
  };
  return { title: 'Overview', element, draw, needs: 'plots' };
}

function historyList(events) {
  if (!events.length) return el('p', { class: 'quiet' }, 'Nothing has happened since this launcher started to remember.');
  return el('ol', { class: 'history' }, events.map((event) => el('li', {}, clockText(event.at), ' ',
    event.node ? ['node ', link('node', event.node)] : ['request ', link('request', event.request)], ' ',
    event.state ? stateText(event.state) : 'is gone',
    event.node && event.request ? [' for ', link('request', event.request)] : null)));
}

/** What is in a record, as far as it is set. */
function recordList(record) {
  const shown = Object.entries(record).filter(([, value]) => value !== null && value !== '' && !(Array.isArray(value) && !value.length));
  return el('dl', {}, shown.flatMap(([key, value]) => {
    const text = Array.isArray(value) ? value.map(String).join(', ') : typeof value === 'object' ? JSON.stringify(value) : /_time$/.test(key) ? clockText(value) : String(value);
    return [el('dt', {}, key), el('dd', {}, key === 'state' ? stateText(text) : key === 'allocated_to' ? link('request', text)
      : key === 'nodes' ? value.flatMap((id, i) => [i ? ', ' : '', link('node', id)]) : text)];
  }));
}

function oneView(kind, id) {
  const title = `${kind === 'node' ? 'Node' : 'Request'} ${id}`;
  const body = el('div', { class: 'grid' }, el('p', { class: 'quiet' }, 'Loading…'));
  let [shown, asked] = ['', 0];
  const load = async () => {
    asked += 1;
    const own = asked;
    const answer = await fetch(`/api/${kind}/${encodeURIComponent(id)}`);
    const isOld = () => own !== asked;
    if (isOld()) return;
    if (!answer.ok) return body.replaceChildren(el('p', { class: 'bad' }, answer.status === 404 ? `There is no ${kind} ${id}.` : `The server answers ${answer.status}.`));
    const found = await answer.json();
    if (isOld()) return;
    if (!found.record && !found.events.length) return body.replaceChildren(el('p', { class: 'bad' }, `There is no ${kind} ${id}, and there was none since ${new Date(found.since * 1000).toLocaleString()}.`));
    body.replaceChildren(panel('Record', found.record ? recordList(found.record) : el('p', {}, 'It is gone.')),
      panel('History', historyList(found.events), el('p', { class: 'quiet' }, 'since ', clockText(found.since))));
    if (kind === 'request' && found.record) {
      const reasons = found.reasons || [];
      body.append(panel('What the pools of this launcher decided', reasons.length ? el('div', { class: 'table' }, el('table', {},
        el('thead', {}, el('tr', {}, ['Pool', 'Verdict', 'Reason', 'Since'].map((name) => el('th', { scope: 'col' }, name)))),
        el('tbody', {}, reasons.map((why) => el('tr', {}, el('td', {}, why.pool), el('td', {}, why.verdict), el('td', {}, why.reason), el('td', {}, clockText(why.since)))))))
        : el('p', { class: 'quiet' }, 'Nothing yet.')));
    }
  };
  const draw = () => {
    // Why a request waits changes without the request; figures come as often as anybody looks at that.
    const reasons = kind === 'request' && state.requests.has(id) && state.figures ? state.figures.now : 0;
    const row = JSON.stringify([(kind === 'node' ? state.nodes : state.requests).get(id) || null, reasons]);
    if (row === shown) return;
    shown = row;
    load().catch(() => { shown = ''; });
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
  if (view.needs === 'plots') loadPlots();
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

function tellConnection() {
  if (state.connected) say('live');
  else say('live, but ZooKeeper does not answer: this may be old', true);
}

function apply(patch) {
  if (patch.revision <= state.revision) return;
  // Something between is missing, so everything is asked for.
  if (patch.from > state.revision) {
    quietly(loadState());
    return;
  }
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
  state.loaded = false;
  early = [];
  try {
    const answer = await fetch('/api/state');
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const whole = await answer.json();
    if (own === loads) takeState(whole);
  } catch (error) {
    setTimeout(() => { if (own === loads) quietly(loadState(Math.min(15, wait * 2))); }, wait * 1000);
    throw error;
  }
}

function takeState(whole) {
  state.nodes = new Map(whole.nodes.map((row) => [row[0], row]));
  state.requests = new Map(whole.requests.map((row) => [row[0], row]));
  state.images = whole.images;
  state.revision = whole.revision;
  state.connected = whole.connected;
  state.loaded = true;
  const waiting = early;
  early = [];
  // One of them may show that something is missing, and then the rest belongs to what is loaded next.
  waiting.forEach((patch) => (state.loaded ? apply(patch) : early.push(patch)));
  tellConnection();
  draw();
}

function takeFigures(figures) {
  state.figures = figures;
  skew = figures.now - Date.now() / 1000;
  document.getElementById('since').textContent = `History since ${new Date(figures.since * 1000).toLocaleString()}.`;
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

const quietly = (promise) => promise.catch(() => say('the server does not answer, trying again', true));

function connect() {
  const events = new EventSource('/api/stream');
  events.addEventListener('hello', () => { quietly(loadState()); quietly(loadFigures()); });
  events.addEventListener('reload', () => quietly(loadState()));
  events.addEventListener('patch', (event) => {
    const patch = JSON.parse(event.data);
    if (state.loaded) apply(patch);
    // Without the first ones the gap is noticed, and everything asked for again.
    else if (early.push(patch) > MOST_EARLY) early.shift();
  });
  events.addEventListener('figures', (event) => takeFigures(JSON.parse(event.data)));
  events.onerror = () => {
    say('no connection to the launcher, trying again', true);
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
setInterval(() => { if (view && view.needs === 'plots' && !document.hidden) quietly(loadPlots()); }, 15000);
route(false);
connect();
