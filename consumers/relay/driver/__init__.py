"""The relay's shells: they receive, send, wait and acknowledge as the machine says."""
