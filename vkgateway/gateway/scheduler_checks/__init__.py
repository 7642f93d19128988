"""Checks of the schedulers of pools in other modes than native: condition SchedulersReady of a ComputeCluster."""
