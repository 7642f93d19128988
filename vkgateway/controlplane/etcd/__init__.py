"""The shared datastore: an etcd client, and who may read what in it."""
