"""The steady state of a topic whose history is shorter than its delays, by extrapolation."""
