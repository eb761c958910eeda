"""Reads live topics: gaps, status, where a timer is, findings, samples."""
