"""A cluster in memory: an object store with the API server's rules, and kubelets that admit as real ones do."""
