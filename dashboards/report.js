(() => {
  'use strict';
  const root = document.documentElement;
  root.classList.add('js');
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const specs = JSON.parse(document.getElementById('figures').textContent || '{}');

  // -- theme ------------------------------------------------------------------------------
  const prefersDark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme || (prefersDark.matches ? 'dark' : 'light')) === 'dark';
  const themeButton = document.getElementById('theme');
  const stored = (value) => {
    try {
      if (value) localStorage.setItem('wstrace-theme', value);
      return localStorage.getItem('wstrace-theme');
    } catch {
      return null; // storage is closed to files in some browsers
    }
  };
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme;
    themeButton.textContent = isDark() ? 'Light' : 'Dark';
    redraw();
  };
  themeButton.addEventListener('click', () => {
    const theme = isDark() ? 'light' : 'dark';
    stored(theme);
    setTheme(theme);
  });
  prefersDark.addEventListener('change', () => setTheme());

  // -- figures ----------------------------------------------------------------------------
  let Plotly = null;
  const scales = {};
  const narrow = () => innerWidth < 620;

  const resolve = (value, style) => {
    if (typeof value === 'string') {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      if (name) return style.getPropertyValue(name[1]).trim();
      return value === 'inherit' ? style.getPropertyValue('--sans').trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolve(item, style));
    if (value && typeof value === 'object') {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v, style)]));
    }
    return value;
  };

  const human = (bytes) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let power = 0;
    while (bytes >= 1024 && power < 4) { bytes /= 1024; power += 1; }
    return `${+bytes.toFixed(2)} ${units[power]}`;
  };

  const logAxis = (axis, data) => {
    const sizes = data.flatMap((trace) => trace.y).filter((size) => size > 0);
    const low = Math.floor(Math.log2(Math.min(...sizes, 2 ** 40)));
    const high = Math.ceil(Math.log2(Math.max(...sizes, 256)));
    const step = Math.max(1, Math.ceil((high - low) / 7));
    const ticks = [];
    for (let power = low; power <= high; power += step) ticks.push(2 ** power);
    const pad = Math.log10(2) * 0.6;
    return {
      ...axis, type: 'log', rangemode: undefined, tickvals: ticks, ticktext: ticks.map(human),
      range: [Math.log10(2 ** low) - pad, Math.log10(2 ** high) + pad],
    };
  };

  const spread = (layout, tall) => {
    // The legend lies at the very bottom; on a narrow screen phases stand upright above it.
    const named = layout.xaxis.ticktext && layout.xaxis.range[1] === 1;
    Object.assign(layout.legend, { yref: 'container', y: 0, yanchor: 'bottom' });
    layout.margin.b = 56 + (layout.xaxis.title ? 20 : 8) + (tall ? 18 : 0);
    if (!narrow()) return layout;
    layout.legend.font.size = 11;
    layout.margin.b += named ? 100 : 26;
    layout.height += named ? 110 : 26;
    if (named) layout.xaxis.tickangle = -90;
    [layout.xaxis, layout.yaxis].filter((a) => !named && a.ticktext).forEach((axis) => {
      axis.tickvals = axis.tickvals.filter((_, i) => i % 2 === 0);
      axis.ticktext = axis.ticktext.filter((_, i) => i % 2 === 0);
    });
    return layout;
  };

  const draw = (canvas) => {
    const id = canvas.dataset.figure;
    const spec = resolve(specs[id], getComputedStyle(root));
    const tall = spec.data.length > 2 && canvas.clientWidth < 560; // a legend of two rows
    const layout = spread(spec.layout, tall);
    if (scales[id] === 'log') layout.yaxis = logAxis(layout.yaxis, spec.data);
    canvas.style.minHeight = `${layout.height}px`;
    const config = { displayModeBar: false, responsive: true, showTips: false };
    return Plotly.react(canvas, spec.data, layout, config);
  };

  function redraw() {
    if (Plotly) all('[data-figure]').filter((c) => c.dataset.figure in specs).forEach(draw);
  }

  const inflate = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).text();
  };

  const loadFigures = async () => {
    const packed = document.getElementById('plotly-gz');
    if (!packed) return;
    const script = document.createElement('script');
    script.textContent = await inflate(packed.textContent.trim());
    document.head.append(script);
    packed.remove();
    Plotly = window.Plotly;
    redraw();
    root.dataset.figures = 'drawn';
  };

  all('[data-scale]').forEach((button) => button.addEventListener('click', () => {
    const id = button.dataset.for;
    scales[id] = button.dataset.scale;
    all(`[data-for="${id}"]`).forEach((b) => b.setAttribute('aria-pressed', b === button));
    if (Plotly) draw(document.querySelector(`[data-figure="${id}"]`));
  }));

  // -- tables -----------------------------------------------------------------------------
  const key = (row, column, kind) => {
    const cell = row.children[column];
    const text = cell.dataset.sort ?? cell.textContent;
    return kind === 'num' ? Number(text) : text.toLowerCase();
  };
  const sortBy = (table, header) => {
    const column = Array.from(header.parentNode.children).indexOf(header);
    const kind = header.dataset.kind;
    const first = kind === 'num' ? 'descending' : 'ascending';
    const other = first === 'ascending' ? 'descending' : 'ascending';
    const way = header.getAttribute('aria-sort') === first ? other : first;
    all('th[aria-sort]', table).forEach((th) => th.removeAttribute('aria-sort'));
    header.setAttribute('aria-sort', way);
    const sign = way === 'ascending' ? 1 : -1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => [key(row, column, kind), row]);
    rows.sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0));
    body.append(...rows.map(([, row]) => row));
  };
  all('table.sortable').forEach((table) => all('thead th', table).forEach((header) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...header.childNodes);
    button.addEventListener('click', () => sortBy(table, header));
    header.append(button);
  }));
  all('[data-filter]').forEach((input) => input.addEventListener('input', () => {
    const rows = Array.from(document.getElementById(input.dataset.filter).tBodies[0].rows);
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById('filtered').textContent = words.length
      ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  }));

  // -- copy -------------------------------------------------------------------------------
  const copyText = async (text) => {
    if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
    const area = document.createElement('textarea'); // a file: page has no clipboard API
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    if (!done) throw new Error('copy refused');
    return undefined;
  };
  all('[data-copy]').forEach((button) => button.addEventListener('click', async () => {
    try {
      await copyText(button.dataset.copy);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = 'Press Ctrl+C';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 1600);
  }));

  // -- links into closed details, and paper -----------------------------------------------
  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === 'DETAILS') target.open = true;
  };
  addEventListener('hashchange', openTarget);
  openTarget();
  let before = null;
  addEventListener('beforeprint', () => {
    before = { theme: root.dataset.theme, closed: all('details:not([open])') };
    before.closed.forEach((d) => { d.open = true; });
    setTheme('light');
  });
  addEventListener('afterprint', () => {
    before.closed.forEach((d) => { d.open = false; });
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    setTheme();
  });

  setTheme(stored());
  loadFigures().catch((error) => {
    root.classList.remove('js');
    console.error('figures:', error);
  });
})();
