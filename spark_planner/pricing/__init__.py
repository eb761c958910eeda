"""Simulation of a plan on a history's cells: gaps by the gap law, hops, ledgers, redelivery on unload. No Spark."""
