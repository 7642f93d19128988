// Line chart by uPlot, which is loaded when the first chart is shown.

import { html, noChange } from "../../vendor/lit-html/lit-html.js";
import { directive, Directive } from "../../vendor/lit-html/directive.js";
import { amount } from "../core/format.js";

const HEIGHT = 180;

let loading = null;

/** Load uPlot. Its published minified file is a classic script. */
function loadPlot() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../../vendor/uplot/uPlot.iife.min.js", import.meta.url).href;
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("uPlot cannot be loaded"));
    document.head.append(script);
  });
  return loading;
}

/** Charts on the page. */
const DRAWN = new Map();

/** Draw all charts again: colours are read from the style when a chart is drawn. */
function drawAgain() {
  for (const [element, draw] of DRAWN) {
    if (element.isConnected) draw();
    else DRAWN.delete(element);
  }
}

for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", drawAgain);

/** Keeps a chart in an element, and its data current. */
class Chart extends Directive {
  plot = null;
  element = null;

  render(times, series, total) {
    return noChange;
  }

  update(part, [times, series, total]) {
    if (this.times === times && this.series === series) return noChange;
    Object.assign(this, { times, series, total });
    if (this.element) {
      this.plot?.setData(this.data());
      return noChange;
    }
    this.element = part.element;
    void this.create();
    return noChange;
  }

  /** Used, and borrowed on top of it, as areas; waiting and the total as lines. */
  data() {
    const { used, borrowed, waiting, total } = this.series;
    const sum = used.map((value, index) => (value === null || borrowed[index] === null ? null : value + borrowed[index]));
    return [this.times, sum, used, waiting, total];
  }

  async create() {
    const element = this.element;
    let Plot;
    try {
      Plot = await loadPlot();
    } catch {
      element.textContent = "The chart cannot be loaded. The table below has its figures.";
      return;
    }
    const draw = () => {
      this.plot?.destroy();
      this.plot = new Plot(this.options(element), this.data(), element);
    };
    draw();
    DRAWN.set(element, draw);
    new ResizeObserver(() => element.isConnected && this.plot?.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
  }

  options(element) {
    const style = getComputedStyle(element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `12px ${style.fontFamily}` };
    const line = (name, more) => ({ stroke: colour(name), width: 1.5, points: { show: false }, ...more });
    return {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.08)] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 5)), space: 70 },
        { ...axis, size: 44, values: (_, ticks) => ticks.map((tick) => amount(tick)) },
      ],
      series: [
        {},
        line("--borrowed", { fill: (plot) => stripes(plot.ctx, colour("--borrowed"), colour("--borrowed-soft")) }),
        line("--used", { fill: colour("--used-soft") }),
        line("--waiting", { dash: [6, 3] }),
        line("--text", { dash: [2, 3], width: 1 }),
      ],
    };
  }
}

/** Return a filling with the stripes that borrowed GPUs have everywhere. */
function stripes(context, colour, soft) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = soft;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  // The corners, too, so that the lines of neighbouring tiles meet.
  for (const from of [-8, 0, 8]) {
    pen.moveTo(from - 2, 10);
    pen.lineTo(from + 10, -2);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

const plotted = directive(Chart);

/**
 * @param {number[]} times seconds since the epoch
 * @param {Record<string, (number | null)[]>} series used, borrowed, waiting, total
 */
export const chart = (times, series, total, label) => html`<div class="chart" role="img" aria-label=${label} ${plotted(times, series, total)}></div>`;
