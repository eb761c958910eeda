"""The relay's drivers: they receive, send, wait and acknowledge as the machine commands."""
