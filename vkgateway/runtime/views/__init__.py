"""Narrow views of Kubernetes objects and the keys that identify them; every package of `sync` uses them."""
