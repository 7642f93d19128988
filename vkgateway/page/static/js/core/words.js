// Words for codes of the gateway: pending reasons, states, events, verdicts.

/** What a pending reason means, in a few words. */
export const REASONS = {
  WaitingForQuota: "The tenant's limit is reached",
  BudgetUsedUp: "The tenant's monthly budget is used up",
  WaitingForRoom: "Not enough free capacity",
  WaitingForMembers: "Pods of the gang are missing",
  WaitingForEviction: "Waits until borrowing pods have terminated",
  BehindReservation: "The free capacity is reserved for a gang ahead",
  AtMaximum: "Runs with its maximum number of pods",
  Infeasible: "Can never start in this form",
  Invalid: "The marks of the gang are not valid",
};

/** For a tenant, limit and budget are its own. */
const TENANT_REASONS = {
  WaitingForQuota: "Your limit is reached",
  BudgetUsedUp: "Your monthly budget is used up",
};

/** Reasons that waiting never resolves. */
export const PERMANENT = new Set(["Infeasible", "Invalid"]);

/** @param {string} [scope] who reads it */
export function reasonText(code, scope = "platform") {
  const own = scope === "tenant" ? TENANT_REASONS[code] : undefined;
  return own ?? REASONS[code] ?? (code || "The arbiter has not decided yet");
}

export const STATES = { waiting: "waiting", starting: "starting", running: "running", leaving: "evicted soon" };

export const EVENTS = {
  start: "started",
  evict: "eviction",
  reprieve: "eviction withdrawn",
  promote: "moved into the guarantee",
  end: "ended",
};

export const VERDICTS = {
  Starts: "Starts now",
  StartsAfterEviction: "Starts after evictions",
  Waits: "Waits",
  Never: "Never starts in this form",
  Accepted: "Accepted",
  AcceptedLater: "Accepted later",
  Refused: "Refused",
  Unused: "No gang is affected",
  AllRestart: "All gangs restart",
  SomeWait: "Some gangs wait",
  Helps: "Helps",
  NoEffect: "No effect",
};

/** Tone of a verdict. */
export const VERDICT_TONES = {
  Starts: "good",
  StartsAfterEviction: "warn",
  Waits: "warn",
  Never: "bad",
  Accepted: "good",
  AcceptedLater: "warn",
  Refused: "bad",
  Unused: "good",
  AllRestart: "good",
  SomeWait: "warn",
  Helps: "good",
  NoEffect: "quiet",
};

export const EFFECTS = {
  Starts: "starts",
  DoesNotStart: "does not start now",
  StartsAfterEviction: "starts after evictions",
  Spared: "is not evicted",
  NotSpared: "its eviction is not withdrawn",
  InsideGuarantee: "counts as inside the guarantee",
  Borrows: "continues to borrow",
  Earlier: "starts earlier",
  Later: "starts later",
  Reason: "waits for another reason",
};
