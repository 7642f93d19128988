"""The shared datastore: an etcd client, and the tenancy of clusters in it."""

import os

# This program starts children with exec and never with a bare fork, so gRPC's fork handlers are useless, and each start
# would log a line about them. gRPC reads the variable once, at import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# gRPC would write lines about each failed handshake between those of the log. The errors have the reason.
os.environ.setdefault("GRPC_VERBOSITY", "none")
