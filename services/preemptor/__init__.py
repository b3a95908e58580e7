"""Carries evictions out: within budgets, this very pod, all or none where budgets apply. See
`services.preemptor.app`."""
