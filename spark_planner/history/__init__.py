"""Reading a history from any file or table into normalised rows: columns, units, quarantine."""
