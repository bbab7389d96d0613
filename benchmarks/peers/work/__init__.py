"""The workloads, one module each. All have the face of `base.Workload`."""
