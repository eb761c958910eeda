"""The demo: a trace of delayed messages, every scheme, a real broker, and a verdict that can be recounted.

Pure: `settings`, `verdict`, `table`, `foresight`, and `report`, which draws them. The counting tools (trace, ledger,
recorder, journal) are in `timewheel.testing.evidence`. One process per scheme: `player`. The parent: `run`, `sampling`,
`sabotage`, `results`.
"""
