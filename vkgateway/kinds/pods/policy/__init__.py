"""What a tenant may ask of a pod: policy, Pod Security Standards, and fields that API servers drop (pure)."""
