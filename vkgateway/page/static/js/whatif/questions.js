// Questions about hypothetical changes: from the fields of the form, and as a command line.

/** @typedef {Record<string, string>} Fields */

/** A field of the form is not valid. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

const DURATION_UNITS = { s: 1, m: 60, h: 3600, d: 86_400 };

/**
 * Return the question of the filled fields, as the gateway expects it.
 * @throws {FieldError}
 */
export function questionOf(fields) {
  switch (fields.kind) {
    case "guarantee":
      return guaranteeQuestion(fields);
    case "drain":
      return { kind: "drain", nodes: needed(words(fields.nodes), "nodes", "Name at least one node.") };
    case "grow":
      return { kind: "grow", pool: needed(fields.pool, "pool", "Choose a pool."), nodes: integer(fields, "count", 1), ...(fields.like ? { like: fields.like } : {}) };
    default:
      return gangQuestion(fields);
  }
}

function gangQuestion(fields) {
  const question = {
    kind: "gang",
    tenant: needed(fields.tenant, "tenant", "Choose a tenant."),
    pods: integer(fields, "pods", 1),
    requests: { ...quantities(fields, "more"), [fields.resource || "nvidia.com/gpu"]: needed(fields.units, "units", "Enter an amount.") },
    band: fields.band || "guaranteed",
  };
  const optional = {};
  if (fields.pool) optional.pools = [fields.pool];
  if (fields.minimum) optional.minimum = integer(fields, "minimum", 1);
  if (fields.priority) optional.priority = integer(fields, "priority", -2_147_483_648);
  if (fields.runLimit) optional.runLimit = seconds(fields.runLimit);
  if (fields.within) optional.within = fields.within.trim();
  return { ...question, ...optional };
}

function guaranteeQuestion(fields) {
  const resource = fields.resource || "nvidia.com/gpu";
  const optional = {};
  if (fields.limit) optional.limit = { [resource]: fields.limit };
  if (fields.weight) optional.weight = decimal(fields, "weight");
  if (fields.cells) optional.cells = cells(fields.cells);
  return {
    kind: "guarantee",
    tenant: needed(fields.tenant, "tenant", "Choose or enter a tenant."),
    pool: needed(fields.pool, "pool", "Choose a pool."),
    guarantee: { [resource]: needed(fields.guarantee, "guarantee", "Enter an amount; 0 removes the guarantee.") },
    ...optional,
  };
}

function needed(given, field, message) {
  const trimmed = (typeof given === "string" ? given.trim() : given);
  if (!trimmed?.length) throw new FieldError(field, message);
  return trimmed;
}

const words = (text) => (text ?? "").split(/[\s,]+/).filter(Boolean);

function integer(fields, name, least) {
  const number = Number(fields[name]);
  if (!fields[name]?.trim() || !Number.isInteger(number) || number < least) throw new FieldError(name, `Enter a whole number${least > -10 ? ` of at least ${least}` : ""}.`);
  return number;
}

function decimal(fields, name) {
  const number = Number(fields[name]);
  if (!(number > 0)) throw new FieldError(name, "Enter a number above 0.");
  return number;
}

/** Parse `cpu=4,memory=16Gi`. */
function quantities(fields, name) {
  const found = {};
  for (const item of words(fields[name])) {
    const [resource, amount, ...rest] = item.split("=");
    if (!resource || !amount || rest.length) throw new FieldError(name, `${item} is not RESOURCE=QUANTITY, such as cpu=4.`);
    found[resource] = amount;
  }
  return found;
}

function seconds(text) {
  const compact = text.trim();
  if (!/^([0-9.]+[smhd])+$/.test(compact)) throw new FieldError("runLimit", "Enter a duration such as 90m, 1h30m or 2d.");
  return [...compact.matchAll(/([0-9.]+)([smhd])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * DURATION_UNITS[unit], 0);
}

function cells(text) {
  return text.split("+").flatMap((part) => {
    const [, times, size] = /^\s*(?:(\d+)x)?(\d+)\s*$/.exec(part) ?? [];
    if (!size || Number(times) > 1024) throw new FieldError("cells", "Enter sizes such as 8+8+1 or 2x8+1.");
    return Array.from({ length: Number(times ?? 1) }, () => Number(size));
  });
}

/** Return the command that asks the same question. */
export function commandOf(question) {
  const amounts = (each, prefix = "") => Object.entries(each).map(([name, amount]) => `${prefix}${name}=${amount}`);
  let parts;
  if (question.kind === "gang") {
    parts = ["gang", "--tenant", question.tenant, "--pods", String(question.pods), "--request", amounts(question.requests).join(",")];
    for (const pool of question.pools ?? []) parts.push("--pool", pool);
    if (question.band === "low") parts.push("--low");
    if (question.minimum) parts.push("--min", String(question.minimum));
    if (question.priority) parts.push("--priority", String(question.priority));
    if (question.runLimit) parts.push("--run-limit", `${question.runLimit}s`);
    if (question.within) parts.push("--within", question.within);
  } else if (question.kind === "guarantee") {
    const spec = [...amounts(question.guarantee, "guarantee="), ...amounts(question.limit ?? {}, "limit="), ...(question.weight ? [`weight=${question.weight}`] : []), ...(question.cells ? [`cells=${question.cells.join("+")}`] : [])];
    parts = ["guarantee", "--tenant", question.tenant, "--pool", `${question.pool}:${spec.join(",")}`];
  } else if (question.kind === "drain") {
    parts = ["drain", ...question.nodes];
  } else {
    parts = ["grow", question.pool, "--nodes", String(question.nodes), ...(question.like ? ["--like", question.like] : [])];
  }
  return ["vkgateway", "whatif", ...parts].map(quoted).join(" ");
}

const quoted = (text) => (/^[\w./:=,+@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
