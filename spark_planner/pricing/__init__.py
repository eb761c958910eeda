"""What a plan does on a history's cells: the law of gaps, hops, ledgers, what an unload brings again. No Spark."""
