"""Events of kubelets about compute pods, mirrored to tenant pods."""
