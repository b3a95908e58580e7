"""Carries plans out: re-checks, binds, reports. See `services.binder.app`."""
