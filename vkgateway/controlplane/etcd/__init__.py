"""The shared datastore: an etcd client, and who may read what in it."""

import os

# Children are started by exec, never by a bare fork, so gRPC's fork handlers only get in the way: each start of a
# process would print a line about them. Read once, when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
