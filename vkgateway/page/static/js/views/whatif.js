// What-if: questions to the arbiter about a new gang, a guarantee, a drain or more nodes.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { problemOf } from "../app.js";
import { getJson } from "../core/api.js";
import { redraw } from "../core/draw.js";
import { problemBox } from "../parts/basics.js";
import { answerView } from "../whatif/answer.js";
import { questionForm } from "../whatif/form.js";
import { FieldError, questionOf } from "../whatif/questions.js";
import { announce } from "../announce.js";

const NOTHING_ASKED = {
  session: null,
  fields: { kind: "gang", pods: "1", units: "8", band: "guaranteed", count: "1" },
  wrong: null,
  problem: null,
  answer: null,
  busy: false,
};

let asked = { ...NOTHING_ASKED };

export function whatIfView(session) {
  // An answer names all tenants: it ends with its session.
  if (asked.session !== session) asked = { ...NOTHING_ASKED, session };
  return page();
}

const page = () => html`
  <h1 id="title" tabindex="-1">What-if</h1>
  <p class="lead">Would it fit, where, and which gangs would be evicted? The arbiter decides on the current pods and nodes.</p>
  <div class="ask">
    ${questionForm({ fields: asked.fields, wrong: asked.wrong, busy: asked.busy, onChange, onAsk })}
    <div class="answers">
      ${asked.problem ? problemBox(asked.problem) : nothing} ${asked.answer ? answerView(asked.answer) : asked.problem ? nothing : html`<div class="empty"><p class="empty-title">The answer appears here.</p><p>Fill in the form and ask. Effects that would happen anyway are left out.</p></div>`}
    </div>
  </div>
`;

function onChange(name, text) {
  asked.fields = { ...asked.fields, [name]: text };
  asked.wrong = null;
  redraw();
}

async function onAsk() {
  asked.problem = null;
  asked.wrong = null;
  let question;
  try {
    question = questionOf(asked.fields);
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    asked.wrong = { field: error.field, message: error.message };
    const field = document.querySelector(`.question [name="${error.field}"]`);
    const group = field?.closest("details");
    if (group) group.open = true;
    field?.focus();
    redraw();
    return;
  }
  const mine = asked;
  mine.busy = true;
  redraw();
  try {
    mine.answer = await getJson(`api/what-if?question=${encodeURIComponent(JSON.stringify(question))}`);
    announce(`Answer: ${mine.answer.summary}`);
  } catch (error) {
    mine.problem = problemOf(error);
    mine.answer = null;
  } finally {
    mine.busy = false;
    redraw();
  }
}
