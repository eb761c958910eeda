"""The planner is not part of this release.

It will choose a plan from a history of delays with Spark. Until then this package is empty on purpose: it holds the
import name, and nothing can be imported from it.
"""
