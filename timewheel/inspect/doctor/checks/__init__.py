"""All checks, by subject; `timewheel.inspect.doctor.verdict` has their order."""
