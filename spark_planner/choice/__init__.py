"""Candidates, what a user asks of them, the one to recommend, and the reasons in sentences. No Spark but to spread."""
