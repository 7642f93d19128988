"""What all reconcilers share: requests, the work queue, workers, events, finalizers and metrics."""
