"""Images that the nodes of pools keep before pods need them."""
