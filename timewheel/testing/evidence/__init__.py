"""What demo, tests and benchmarks count with: what was sent and handled, and what the checker makes of it."""
