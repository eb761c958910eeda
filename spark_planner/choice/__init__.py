"""Candidates, constraints, the choice of the recommended plan, and the reasons in sentences. Uses no Spark."""
