"""Path of sends from a producer to the client: the client's producers, the limit on pending sends, their outcomes."""
