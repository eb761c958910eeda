"""The evidence of demo, tests and benchmarks: timers sent and handled, and the checker's counts."""
