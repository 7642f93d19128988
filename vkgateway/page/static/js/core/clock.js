// The time of the gateway, as far as the browser knows it.

let offset = 0;

/**
 * Learn the time of the gateway from a message that just arrived. The clock of the browser may be wrong.
 * @param {number} time seconds since the epoch
 */
export function learnTime(time) {
  if (!time) return;
  const difference = time - Date.now() / 1000;
  // Small differences are the age of the message.
  offset = Math.abs(difference) > 2 ? difference : 0;
}

/** Return the gateway's time in seconds since the epoch. */
export const now = () => Date.now() / 1000 + offset;
