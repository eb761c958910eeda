"""The demo: one trace of delayed messages, every scheme, one real broker, and a verdict that can be recounted.

Pure: `settings`, `trace`, `law`, `checker`, `ledger`, `verdict`, `table`, `results`, and `report`, which draws them.
One process per scheme: `player` with its `ways`, `journal` and `recorder`. The parent: `run`, `stage`, `crew`,
`sampling`, `sabotage`, `live`, `files`.
"""
