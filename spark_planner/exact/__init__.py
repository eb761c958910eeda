"""Exact replay on Spark: plays a history through a plan timer by timer, and counts gaps as a broker counts them."""
