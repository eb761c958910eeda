"""The demo: one trace of delayed messages, every scheme, one real broker, and a verdict that can be recounted.

Pure: `settings`, `trace`, `law`, `ledger`, `checker`, `verdict`, `table`. Shells: `player` and `sabotage` (child
processes), `sampling`, `live`, `run`.
"""
