"""The demo: a trace of delayed messages, every scheme, a real broker, and a verdict that can be recounted.

Pure: `settings`, `verdict`, `table`, `results`, and `report`, which draws them. The counting tools (trace, ledger,
checker, recorder, journal, gap law) are in `timewheel.testing.evidence`. One process per scheme: `player` with its
`ways`. The parent: `run`, `stage`, `crew`, `sampling`, `sabotage`, `live`, `files`.
"""
