// The views of each scope, in the order of the navigation; the first is the start.

import { clustersView } from "./clusters.js";
import { gangsView } from "./gangs.js";
import { nodesView } from "./nodes.js";
import { overviewView } from "./overview.js";
import { poolsView } from "./pools.js";
import { queueView } from "./queue.js";
import { startsView } from "./starts.js";
import { tenantsView } from "./tenants.js";
import { timelineView } from "./timeline.js";
import { usageView } from "./usage.js";
import { whatIfView } from "./whatif.js";

/**
 * @typedef {object} View
 * @property {string} id
 * @property {string} title
 * @property {(session: import("../app.js").Session) => unknown} draw
 */

/** Views of a reader of some namespaces: the others show what belongs to the whole tenant. */
const OF_NAMESPACES = new Set(["overview", "gangs", "timeline"]);

/** Return the views of a session. */
export const viewsOf = ({ scope, namespaces }) => (namespaces ? VIEWS[scope].filter(({ id }) => OF_NAMESPACES.has(id)) : VIEWS[scope]);

const VIEWS = {
  tenant: [
    { id: "overview", title: "Overview", draw: overviewView },
    { id: "gangs", title: "Gangs", draw: gangsView },
    { id: "nodes", title: "Nodes", draw: nodesView },
    { id: "usage", title: "Usage", draw: usageView },
    { id: "timeline", title: "Timeline", draw: timelineView },
  ],
  platform: [
    { id: "pools", title: "Pools", draw: poolsView },
    { id: "queue", title: "Queue", draw: queueView },
    { id: "gangs", title: "Gangs", draw: gangsView },
    { id: "tenants", title: "Tenants", draw: tenantsView },
    { id: "timeline", title: "Timeline", draw: timelineView },
    { id: "clusters", title: "Clusters", draw: clustersView },
    { id: "what-if", title: "What-if", draw: whatIfView },
    { id: "starts", title: "Starts", draw: startsView },
    { id: "usage", title: "Usage", draw: usageView },
  ],
};
