"""Speaks to brokers: their admin API over HTTP, and their binary protocol."""
