"""A history's statistic of bounded size: cells of time and delay, merged on Spark."""
