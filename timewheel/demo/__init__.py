"""The demo: one trace of delayed messages, every scheme, one real broker, and a verdict that can be recounted.

Pure: `settings`, `verdict`, `table`, `results`, and `report`, which draws them. What is counted with (trace, ledger,
checker, recorder, journal, gap law) is `timewheel.testing.evidence`. One process per scheme: `player` with its `ways`.
The parent: `run`, `stage`, `crew`, `sampling`, `sabotage`, `live`, `files`.
"""
