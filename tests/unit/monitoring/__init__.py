"""Alert rules and dashboards in deploy/monitoring."""
