// Starts of pods: the durations of their phases by pool, and the images that take the longest.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { amount, count, duration } from "../core/format.js";
import { starts } from "../core/remote.js";
import { empty, foreign, problemBox } from "../parts/basics.js";
import { bar } from "../parts/bar.js";
import { figure, plainTable } from "../parts/table.js";

const PHASES = {
  admit: "until the arbiter admits the pod",
  bind: "until the compute pod has a node",
  sandbox: "volumes and network",
  pull: "image pulls",
  start: "init containers and the creation of containers",
  ready: "readiness probes",
};

export function startsView() {
  const { data, problem } = starts.want();
  return html`
    <h1 id="title" tabindex="-1">Starts</h1>
    <p class="lead">How long the last starts of pods took, by phase. Images that take long can be kept on the nodes of a pool.</p>
    ${problem ? problemBox(problem) : nothing} ${data ? body(data) : problem ? nothing : html`<div class="skeleton" role="status"><span class="unseen">Loading</span><i></i><i></i></div>`}
  `;
}

function body({ pools, images }) {
  if (!pools.length && !images.length) return empty("No pod has started yet.", "The phases of the starts since this gateway leads appear here, by pool.", "vkgateway explain POD --namespace NAMESPACE");
  return html`
    ${pools.map(poolStarts)}
    ${images.length
      ? html`<section aria-labelledby="images-title">
          <h2 id="images-title">Images that took the longest</h2>
          ${plainTable("Images by the duration of their pulls", IMAGES, images)}
        </section>`
      : nothing}
  `;
}

/** Seconds as `0.4 s`, `12 s` or `3 min`. */
const seconds = (value) => (value < 10 ? `${amount(Math.round(value * 10) / 10)} s` : duration(value));

const IMAGES = [
  { id: "image", title: "Image", main: true, look: "why", cell: (image) => foreign(image.image) },
  figure("pulls", "Pulls"),
  { id: "seconds", title: "In total", number: true, cell: (image) => seconds(image.seconds) },
  { id: "longest", title: "Longest", number: true, cell: (image) => seconds(image.longest) },
  figure("failures", "Failures"),
];

function poolStarts({ pool, starts: number, phases, starting }) {
  const whole = Math.max(...phases.map((phase) => phase.slowest), 0.1);
  const now = Object.entries(starting).map(([phase, pods]) => `${amount(pods)} in ${phase}`);
  return html`
    <section>
      <h2>${foreign(pool)} <span class="dim">${count(number, "start")}${now.length ? `; starting now: ${now.join(", ")}` : nothing}</span></h2>
      ${phases.length
        ? plainTable(
            `Phases of starts in ${pool}`,
            [
              { id: "phase", title: "Phase", main: true, cell: ({ phase }) => html`${phase} <span class="dim">${PHASES[phase]}</span>` },
              { id: "bar", title: "Median and slowest", look: "bar-cell", cell: ({ median, slowest }) => bar({ segments: [{ amount: median, look: "used" }, { amount: slowest - median, look: "tail" }], whole, label: `median ${seconds(median)}, slowest ${seconds(slowest)}` }) },
              { id: "median", title: "Median", number: true, cell: ({ median }) => seconds(median) },
              { id: "slowest", title: "Slowest", number: true, cell: ({ slowest }) => seconds(slowest) },
            ],
            phases,
          )
        : html`<p class="dim">No start has ended yet.</p>`}
    </section>
  `;
}
