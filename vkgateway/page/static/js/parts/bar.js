// Horizontal bar of amounts with marks, such as used and borrowed within guarantee and limit.

import { html, nothing, svg } from "../../vendor/lit-html/lit-html.js";

/**
 * A bar as an image with a text alternative; the figures must also stand next to it.
 * @param {number} options.whole amount of the full width
 */
export function bar({ segments, marks = [], whole, label }) {
  const scale = whole > 0 ? 100 / whole : 0;
  let start = 0;
  const drawn = segments.map(({ amount, look }) => {
    const x = start;
    start += amount * scale;
    return { x: Math.min(100, x), width: Math.max(0, Math.min(100, start) - Math.min(100, x)), look };
  });
  return html`
    <svg class="bar" role="img" aria-label=${label} preserveAspectRatio="none">
      <rect class="bar-ground" width="100%" height="100%" rx="3"></rect>
      ${drawn.map(({ x, width, look }) => (width > 0 ? svg`<rect class="bar-${look}" x="${x}%" width="${width}%" height="100%"></rect>${look === "borrowed" ? stripes(x, width) : nothing}` : nothing))}
      ${marks.map(({ at, look }) => (at * scale <= 100 ? svg`<line class="bar-mark bar-${look}" x1="${at * scale}%" x2="${at * scale}%" y1="0" y2="100%"></line>` : nothing))}
    </svg>
  `;
}

/**
 * Stripes over a segment, so that it differs by more than its colour.
 * @param {number} x percent
 * @param {number} width percent
 */
const stripes = (x, width) => svg`<svg x="${x}%" width="${width}%" height="100%"><rect width="100%" height="100%" fill="url(#stripes)"></rect></svg>`;

/** Definition of the stripes, once on the page. */
export const stripesDefinition = html`
  <svg class="unseen" aria-hidden="true" focusable="false">
    <defs>
      <pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
        <rect class="stripe" width="3" height="6"></rect>
      </pattern>
    </defs>
  </svg>
`;
