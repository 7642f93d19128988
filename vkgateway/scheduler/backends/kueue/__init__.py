"""Kueue as the scheduler of a pool: its objects, and what their states mean (pure). https://kueue.sigs.k8s.io"""
