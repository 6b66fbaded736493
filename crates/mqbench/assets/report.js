// Draws the figures of a report from the data in the page. All else is in the HTML already.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const figures = new Map();

  // The shares of a split ordinate's height, as in axis.rs.
  const UPPER = 0.4, BREAK = 0.04;

  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A series keeps its colour on the whole page, unless another of the same figure has it.
  const names = [];
  const COLOURS = 8;
  function coloured(chart) {
    const keys = chart.kind === 'figure' ? chart.points.map(one => one.key)
      : [...new Set(chart.cells.flatMap(cell => cell.series.map(one => one.key)))];
    chart.hues = {};
    const taken = new Set();
    for (const key of keys) {
      // Of a transport's connections, those with a full handshake have its colour.
      const own = key.match(/^(tcp|tls|quic)( full)?$/i);
      if (own) { chart.hues[key] = '--' + own[1].toLowerCase(); continue; }
      if (!names.includes(key)) names.push(key);
      let at = names.indexOf(key) % COLOURS;
      while (taken.has(at) && taken.size < COLOURS) at = (at + 1) % COLOURS;
      taken.add(at);
      chart.hues[key] = '--s' + at;
    }
  }
  const shown = value => value === null || value === undefined ? '–'
    : Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

  // Ticks of a logarithmic axis, 1-2-5 a decade; within less than a decade closer ones.
  function ticks(low, high) {
    const steps = high / low > 300 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const step of steps) all.push(Number((step * 10 ** power).toPrecision(3)));
    }
    const below = all.filter(tick => tick <= low).pop(), above = all.find(tick => tick >= high);
    return all.filter(tick => tick >= below && tick <= above);
  }

  const pen = document.createElement('canvas').getContext('2d');
  function wide(text, size) {
    pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }
  // The words in lines that are no wider than this; a longer word has a line of its own.
  function lines(text, most, size) {
    const all = [];
    for (const word of String(text).split(' ')) {
      const longer = all.length ? `${all[all.length - 1]} ${word}` : word;
      if (all.length && wide(longer, size) <= most) all[all.length - 1] = longer;
      else all.push(word);
    }
    return all;
  }
  // The labels of an abscissa as large as their words fit into the width of a level; smaller ones break words.
  function abscissa(labels, slot) {
    for (let size = 12; size > 8; size--) {
      const broken = labels.map(label => lines(label, slot, size));
      if (size > 9 && broken.flat().some(line => wide(line, size) > slot)) continue;
      return { size, texts: broken.map(all => all.join('\n')), rows: Math.max(...broken.map(all => all.length)) };
    }
  }
  // How many rows a legend needs.
  function rows(legend, width) {
    let count = 1, x = 0;
    for (const name of legend) {
      const own = 14 + 5 + wide(name, 12);
      if (x > 0 && x + own > width) { count++; x = 0; }
      x += own + 10;
    }
    return count;
  }

  // Where the item of a series stands within its category, and how wide it is.
  function place(api, index, count, most) {
    const slot = Math.min(api.size([1, 0])[0] * 0.78 / count, most);
    const centre = api.coord([api.value(0), api.value(1)])[0] + (index - (count - 1) / 2) * slot;
    return [centre, slot * 0.84];
  }
  // A logarithmic axis has no place for a value of 0 or less: its lower end stands for it.
  const leaves = (chart, value) => chart.log && value <= 0;
  const height = (chart, params, api) => value => leaves(chart, value) ? params.coordSys.y + params.coordSys.height
    : api.coord([api.value(0), value])[1];
  const line = (x1, y1, x2, y2, style) => ({ type: 'line', shape: { x1, y1, x2, y2 }, style });
  // The foot of an interval that a logarithmic axis cannot show is an arrow.
  function whisker(centre, low, high, width, style, leaves) {
    if (Math.abs(low - high) < 0.5) return [];
    const half = Math.min(width / 2, 7);
    const foot = leaves ? [line(centre - half, low - half, centre, low, style), line(centre, low, centre + half, low - half, style)]
      : [line(centre - half, low, centre + half, low, style)];
    return [line(centre, low, centre, high, style), ...foot,
      line(centre - half, high, centre + half, high, style)];
  }

  // A mark of its own for each series, so that colour is not all that tells them apart.
  function marker(index, x, y, fill) {
    const corners = [null, [[0, -6], [6, 0], [0, 6], [-6, 0]], [[0, -6], [5.5, 4.5], [-5.5, 4.5]], [[-4.5, -4.5], [4.5, -4.5], [4.5, 4.5], [-4.5, 4.5]]][index % 4];
    return corners ? { type: 'polygon', shape: { points: corners.map(([dx, dy]) => [x + dx, y + dy]) }, style: { fill } }
      : { type: 'circle', shape: { cx: x, cy: y, r: 4.5 }, style: { fill } };
  }

  const items = {
    bar: (chart, index, count, ink) => (params, api) => {
      const [centre, width] = place(api, index, count, 52);
      const y = height(chart, params, api);
      const bottom = params.coordSys.y + params.coordSys.height;
      const stands = chart.baseline ?? (chart.log ? null : 0);
      const foot = stands === null ? bottom : Math.min(y(stands), bottom);
      const top = y(api.value(1));
      return { type: 'group', children: [
        { type: 'rect', shape: { x: centre - width / 2, y: Math.min(top, foot), width, height: Math.max(Math.abs(foot - top), 1), r: 1 },
          style: { fill: css(chart.hues[chart.points[index].key]) } },
        ...whisker(centre, y(api.value(2)), y(api.value(3)), width * 0.6, { stroke: ink, lineWidth: 1.5 }, leaves(chart, api.value(2)))] };
    },
    // Series stand a little aside of each other, so that no interval hides another.
    line: (chart, index, count) => (params, api) => {
      const at = api.value(0), aside = (index - (count - 1) / 2) * Math.min(9, api.size([1, 0])[0] * 0.6 / count);
      const y = height(chart, params, api);
      const spot = (x, value) => [api.coord([x, 1])[0] + aside, y(value)];
      const [x, top] = spot(at, api.value(1)), hue = css(chart.hues[chart.points[index].key]);
      const before = at > 0 ? chart.points[index].points[at - 1] : null;
      const [low, high] = [2, 3].map(i => spot(at, api.value(i))[1]);
      return { type: 'group', children: [
        ...(before && !(chart.log && before.mean <= 0) ? [line(...spot(at - 1, before.mean), x, top, { stroke: hue, lineWidth: 2 })] : []),
        ...whisker(x, low, high, 12, { stroke: hue, lineWidth: 1.5 }, leaves(chart, api.value(2))), marker(index, x, top, hue)] };
    },
    box: (chart, index, count, ink) => (params, api) => {
      const [centre, width] = place(api, index, count, 44);
      const y = height(chart, params, api);
      const [q1, median, q3, low, high] = [1, 2, 3, 4, 5].map(i => y(api.value(i)));
      const hue = css(chart.hues[chart.points[index].key]), edge = { stroke: hue, lineWidth: 1.5 };
      const point = chart.points[index].points[api.value(0)];
      const dots = outliers(point, v => chart.log ? v > 0 : !chart.split || v <= chart.split[0][1], centre, y, hue);
      const half = width / 4;
      return { type: 'group', children: [
        line(centre, q1, centre, low, edge), line(centre, q3, centre, high, edge),
        line(centre - half, low, centre + half, low, edge), line(centre - half, high, centre + half, high, edge),
        { type: 'rect', shape: { x: centre - width / 2, y: Math.min(q1, q3), width, height: Math.max(Math.abs(q1 - q3), 1) },
          style: { fill: hue, opacity: 0.28 } },
        { type: 'rect', shape: { x: centre - width / 2, y: Math.min(q1, q3), width, height: Math.max(Math.abs(q1 - q3), 1) },
          style: { fill: 'none', ...edge } },
        line(centre - width / 2, median, centre + width / 2, median, { stroke: hue, lineWidth: 3 }), ...dots] };
    },
    // The outliers above the break of a split ordinate.
    beyond: (chart, index, count) => (params, api) => {
      const [centre] = place(api, index, count, 44);
      const y = value => api.coord([api.value(0), value])[1];
      const { key, points } = chart.points[index];
      return { type: 'group', children: outliers(points[api.value(0)], v => v > chart.split[0][1], centre, y, css(chart.hues[key])) };
    },
  };
  function outliers(point, shown, centre, y, hue) {
    return (point.outliers || []).filter(shown).map(value => ({
      type: 'circle', shape: { cx: centre, cy: y(value), r: 2.2 }, style: { fill: 'none', stroke: hue, opacity: 0.65 } }));
  }

  // The distance between the numbers of an axis, as ECharts rounds it.
  function rounded(step) {
    const power = 10 ** Math.floor(Math.log10(step)), lead = step / power;
    return power * (lead < 1.5 ? 1 : lead < 2.5 ? 2 : lead < 4 ? 3 : lead < 7 ? 5 : 10);
  }

  // All that a figure draws: bars with their intervals, boxes with their whiskers and outliers.
  function values(chart) {
    const all = chart.option.series.flatMap(series => series.data.flatMap(([, ...ends]) => ends));
    if (chart.mark !== null) all.push(chart.mark);
    return all;
  }

  // The marks of a logarithmic axis that have room: the ends, and between them one in so many pixels.
  function roomy(marks, pixels) {
    const [low, high] = [marks[0], marks[marks.length - 1]];
    const at = mark => Math.log(mark / low) / Math.log(high / low) * pixels;
    let last = 0;
    return marks.filter((mark, index) => {
      const end = index === 0 || index === marks.length - 1;
      if (!end && (at(mark) - last < 18 || pixels - at(mark) < 18)) return false;
      last = at(mark);
      return true;
    });
  }
  function logarithmic(axis, low, high, pixels = 200) {
    const marks = roomy(ticks(low, high), pixels);
    return { ...axis, type: 'log', min: marks[0], max: marks[marks.length - 1],
      axisTick: { ...axis.axisTick, customValues: marks }, axisLabel: { ...axis.axisLabel, customValues: marks } };
  }

  function figureOption(chart, look) {
    const option = structuredClone(chart.option);
    const count = chart.points.length;
    option.xAxis = { ...look.axis, ...option.xAxis, splitLine: { show: false }, nameLocation: 'middle', nameGap: 28 };
    option.yAxis = { ...look.axis, ...option.yAxis };
    const split = chart.split && !chart.log;
    if (split) {
      const [[low, high], [, most]] = chart.split;
      const top = ticks(high, most).pop();
      const marks = roomy([high, ...ticks(high, most).filter(tick => tick > high)], 75).slice(1);
      option.yAxis = [{ ...option.yAxis, min: low, max: high },
        { ...look.axis, gridIndex: 1, name: '', ...logarithmic({ ...look.axis }, high, most), min: high, max: top }];
      option.yAxis[1].axisTick.customValues = option.yAxis[1].axisLabel.customValues = marks;
      option.xAxis = [option.xAxis, { ...option.xAxis, gridIndex: 1, show: false }];
    } else if (chart.log) {
      const positive = values(chart).filter(v => v > 0);
      option.yAxis = logarithmic(option.yAxis, Math.min(...positive), Math.max(...positive));
    } else if (chart.floor !== null) {
      option.yAxis.min = chart.floor;
      // The number of the foot is left out where the next one would touch it.
      const step = rounded((Math.max(...values(chart)) - chart.floor) / 5);
      const next = (Math.floor(chart.floor / step) + 1) * step - chart.floor;
      option.yAxis.axisLabel = { ...option.yAxis.axisLabel, showMinLabel: next >= step * 0.35 };
    } else if (chart.mark !== null) {
      // The dashed line is always in sight.
      option.yAxis.min = range => chart.mark < range.min ? chart.mark : null;
      option.yAxis.max = range => chart.mark > range.max ? chart.mark : null;
    }
    let mark = chart.mark !== null;
    option.series = option.series.map(series => {
      const index = chart.points.findIndex(one => one.name === series.name);
      const hue = css(chart.hues[chart.points[index].key]);
      const own = { ...series, color: hue, itemStyle: { color: hue },
        renderItem: items[series.renderItem](chart, index, count, look.ink) };
      if (mark) {
        mark = false;
        own.markLine = { silent: true, symbol: 'none', animation: false,
          lineStyle: { color: look.ink, type: 'dashed', width: 1 }, label: { show: false }, data: [{ yAxis: chart.mark }] };
      }
      return own;
    });
    if (split) {
      option.series.push(...chart.option.series.map((series, index) => ({ ...series, xAxisIndex: 1, yAxisIndex: 1,
        renderItem: items.beyond(chart, index, count), color: option.series[index].color, silent: true })));
    }
    option.tooltip = { ...look.tooltip, trigger: 'axis', axisPointer: { type: 'shadow', shadowStyle: { color: look.shadow } },
      formatter: params => {
        const at = params[0].dataIndex;
        const levels = chart.option.xAxis.data;
        const x = params[0].axisValue ?? levels[at];
        const index = levels.indexOf(x);
        const rows = chart.points.map(series => {
          const p = series.points[index];
          if (!p) return '';
          const interval = p.low === null ? '' : ` (${shown(p.low)} to ${shown(p.high)}, over ${p.of})`;
          return `<div><span style="color:${css(chart.hues[series.key])}">■</span> ${safe(series.name)} <b>${shown(p.mean)}</b> ${safe(chart.unit)}${interval}, n ${p.n}${p.disturbed ? `, disturbed runs ${p.disturbed}` : ''}</div>`;
        });
        return `<b>${safe(chart.option.xAxis.name)} ${safe(x)}</b>${rows.join('')}`;
      } };
    return { option, legend: chart.points.map(one => one.name), zoom: 'yAxisIndex' };
  }

  function distributionOption(chart, look) {
    const option = structuredClone(chart.option);
    const cell = chart.cells[chart.cell];
    option.xAxis = { ...look.axis, ...option.xAxis, nameLocation: 'middle', nameGap: 28 };
    option.yAxis = { ...look.axis, ...option.yAxis };
    const bounds = cell.series[0].bounds;
    if (chart.log) option.xAxis = logarithmic(option.xAxis, bounds[0], bounds[bounds.length - 1]);
    if (chart.cdf) option.yAxis = { ...option.yAxis, max: 100, name: 'messages that took no longer [%]' };
    option.series = cell.series.map((one, index) => {
      const hue = css(chart.hues[one.key]);
      const points = chart.cdf ? one.percentiles.map(([percent, value]) => [value, percent])
        : [...one.shares.map((share, i) => [one.bounds[i], share * 100]), [one.bounds[one.bounds.length - 1], 0]];
      return { type: 'line', name: one.name, data: points, color: hue, symbol: 'none', step: chart.cdf ? false : 'end',
        lineStyle: { width: 2, type: ['solid', 'dashed', 'dotted'][index % 3] }, areaStyle: chart.cdf ? undefined : { opacity: 0.15 } };
    });
    option.tooltip = { ...look.tooltip, trigger: 'axis', valueFormatter: value => `${shown(value)} %` };
    return { option, legend: cell.series.map(one => one.name), zoom: 'xAxisIndex' };
  }

  function look() {
    const [ink, quiet, grid, card, rule] = ['--ink', '--quiet', '--grid', '--card', '--line'].map(css);
    return { ink, quiet, shadow: grid,
      axis: { nameTextStyle: { color: quiet }, axisLine: { show: true, lineStyle: { color: quiet } },
        axisTick: { lineStyle: { color: quiet } }, axisLabel: { color: quiet, hideOverlap: true, formatter: v => typeof v === 'number' ? shown(v) : v },
        splitLine: { lineStyle: { color: grid } } },
      tooltip: { confine: true, backgroundColor: card, borderColor: rule, textStyle: { color: ink, fontSize: 12 } } };
  }

  // Places legend, title, grid and labels, so that none is over another at any width.
  function arrange(chart, option, legend, style) {
    const width = chart.view.getWidth(), split = Array.isArray(option.yAxis);
    const [xAxis, yAxis] = [option.xAxis, option.yAxis].map(axis => Array.isArray(axis) ? axis[0] : axis);
    const title = lines(yAxis.name, width - 12, 12);
    yAxis.name = '';
    const head = rows(legend, width - 8) * 22 + 6;
    const top = head + title.length * 16 + 14;
    // So wide are the numbers beside the ordinate.
    const left = split ? 14 + Math.max(...chart.split.flat().map(value => wide(shown(value), 12))) : 8;
    let labels = 18;
    if (xAxis.type === 'category') {
      const { size, texts, rows } = abscissa(xAxis.data, (width - (split ? left : 48) - 14) / xAxis.data.length - 5);
      labels = rows * (size + 2) + 6;
      xAxis.axisLabel = { ...xAxis.axisLabel, interval: 0, hideOverlap: false, fontSize: size, lineHeight: size + 2, formatter: (_, at) => texts[at] };
    }
    xAxis.nameGap = labels + 8;
    // Many lines of labels make the figure higher, and the drawing no smaller.
    const element = chart.view.getDom();
    element.style.height = '';
    const least = top + labels + 28 + 150;
    if (element.clientHeight < least) element.style.height = `${least}px`;
    chart.view.resize();
    const height = chart.view.getHeight();
    option.title = { text: title.join('\n'), left: 0, top: head, padding: 0,
      textStyle: { color: style.quiet, fontSize: 12, lineHeight: 16, fontWeight: 'normal' } };
    if (!split) {
      // The last number of an abscissa of values stands half beside the grid.
      const right = xAxis.type === 'category' ? 14 : 26;
      option.grid = { left, right, top, bottom: 28, containLabel: true };
      return;
    }
    const bottom = labels + 28, whole = height - top - bottom, upper = whole * UPPER, gap = whole * BREAK;
    option.grid = [{ left, right: 14, top: top + upper + gap, bottom }, { left, right: 14, top, height: upper }];
    option.graphic = [top + upper, top + upper + gap].map(y => ({ type: 'line', silent: true, z: 10,
      shape: { x1: left - 6, y1: y + 3, x2: left + 6, y2: y - 3 }, style: { stroke: style.quiet, lineWidth: 1.5 } }));
  }

  function draw(chart) {
    const style = look();
    const { option, legend, zoom } = (chart.kind === 'figure' ? figureOption : distributionOption)(chart, style);
    arrange(chart, option, legend, style);
    // What is told of the place under a pointer that has just left would be told anew, and stay.
    chart.view.dispatchAction({ type: 'updateAxisPointer', currTrigger: 'leave' });
    chart.view.dispatchAction({ type: 'hideTip' });
    chart.view.setOption({
      ...option,
      animation: false,
      backgroundColor: 'transparent',
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      legend: { top: 0, left: 0, data: legend.map(name => ({ name, icon: 'roundRect' })), textStyle: { color: style.ink },
        inactiveColor: style.quiet, itemWidth: 14, itemHeight: 10 },
      dataZoom: [{ type: 'inside', [zoom]: 0, filterMode: 'none', zoomOnMouseWheel: 'ctrl', moveOnMouseMove: true,
        moveOnMouseWheel: false, start: chart.window[0], end: chart.window[1] }],
    }, { notMerge: true });
  }

  function save(name, type, text) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // Half as much, around where most of it is; twice as much.
  function zoomed([start, end], factor, middle) {
    const width = Math.min((end - start) * factor, 100);
    const from = Math.min(Math.max(Math.min(Math.max(middle, start), end) - width / 2, 0), 100 - width);
    return [from, from + width];
  }
  function middle(chart) {
    if (chart.kind === 'distribution') return 25;
    const map = chart.log ? Math.log : v => v;
    const all = (chart.split && !chart.log ? chart.split[0] : values(chart)).filter(v => !chart.log || v > 0).map(map);
    const means = chart.points.flatMap(s => s.points).filter(Boolean).map(p => map(p.median)).sort((a, b) => a - b);
    const scaled = chart.option.yAxis.scale || chart.log;
    const low = scaled ? Math.min(...all) : Math.min(0, ...all), high = Math.max(...all);
    return high > low ? (means[means.length >> 1] - low) / (high - low) * 100 : 50;
  }

  const actions = {
    log: (chart, control) => {
      chart.log = !chart.log;
      chart.window = [0, 100];
      control.setAttribute('aria-pressed', chart.log);
    },
    cdf: (chart, control) => {
      chart.cdf = !chart.cdf;
      control.setAttribute('aria-pressed', chart.cdf);
    },
    cell: (chart, control) => { chart.cell = control.selectedIndex; chart.window = [0, 100]; },
    in: chart => { chart.window = zoomed(chart.window, 0.5, middle(chart)); },
    out: chart => { chart.window = zoomed(chart.window, 2, (chart.window[0] + chart.window[1]) / 2); },
    reset: chart => { chart.window = [0, 100]; },
    csv: chart => save(chart.file + '.csv', 'text/csv', chart.csv),
    svg: chart => save(chart.file + '.svg', 'image/svg+xml', chart.view.renderToSVGString()),
  };
  function act(control) {
    const chart = figures.get(control.dataset.for);
    actions[control.dataset.do](chart, control);
    if (!['csv', 'svg'].includes(control.dataset.do)) draw(chart);
  }

  // A figure is made when it is first seen; one in a closed part has no size.
  function make(element) {
    const chart = figures.get(element.id);
    if (chart.view || element.clientWidth === 0) return;
    chart.view = echarts.init(element, null, { renderer: 'svg' });
    chart.view.on('datazoom', () => {
      const zoom = chart.view.getOption().dataZoom[0];
      chart.window = [zoom.start, zoom.end];
    });
    draw(chart);
    element.dataset.drawn = 'yes';
  }

  for (const chart of data.charts) {
    Object.assign(chart, { cdf: true, cell: 0, window: [0, 100] });
    if (chart.kind === 'distribution') chart.cell = chart.cells.length - 1;
    figures.set(chart.id, chart);
    coloured(chart);
    const positive = chart.kind !== 'figure' || values(chart).some(v => v > 0);
    if (!positive) document.querySelector(`[data-for="${chart.id}"][data-do=log]`).disabled = true;
    const select = document.querySelector(`select[data-for="${chart.id}"]`);
    if (select) select.selectedIndex = chart.cell;
  }
  for (const control of document.querySelectorAll('[data-do]')) {
    control.addEventListener(control.tagName === 'SELECT' ? 'change' : 'click', () => act(control));
  }
  // One after the other, so that a page of many figures answers meanwhile.
  const waiting = new Set();
  function next() {
    for (const element of waiting) {
      waiting.delete(element);
      make(element);
      setTimeout(next);
      return;
    }
  }
  let printing = false;
  const size = new ResizeObserver(entries => {
    if (printing) return;
    for (const { target } of entries) {
      const chart = figures.get(target.id);
      if (!chart.view) {
        if (waiting.size === 0) setTimeout(next);
        waiting.add(target);
      } else if (target.clientWidth > 0) {
        chart.view.resize();
        draw(chart);
      }
    }
  });
  for (const element of document.querySelectorAll('.chart')) size.observe(element);
  const redraw = () => { for (const chart of figures.values()) if (chart.view) draw(chart); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  matchMedia('print').addEventListener('change', redraw);
  addEventListener('beforeprint', () => {
    printing = true;
    for (const part of document.querySelectorAll('details.more, details.data')) part.open = true;
    for (const element of document.querySelectorAll('.chart')) {
      make(element);
      const view = figures.get(element.id).view;
      if (!view) continue;
      view.getZr().flush();
      // As wide as the paper has it.
      element.querySelector('svg').setAttribute('viewBox', `0 0 ${view.getWidth()} ${view.getHeight()}`);
    }
  });
  addEventListener('afterprint', () => {
    printing = false;
    for (const drawing of document.querySelectorAll('.chart svg')) drawing.removeAttribute('viewBox');
  });
})();
