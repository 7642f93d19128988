"""NetworkPolicies on the embedded real node: the kernel's rules, and the process that keeps them up to date."""
