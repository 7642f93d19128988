"""Generated from etcd.proto by generate.py; not edited by hand."""
