"""What all reconcilers share: requests, work queues, workers, events, finalizers and metrics."""
