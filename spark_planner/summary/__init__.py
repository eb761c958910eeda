"""The single pass over a history: cells of time and delay, merged on Spark into a statistic of bounded size."""
