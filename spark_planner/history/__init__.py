"""From any file or table to normalised rows: columns, units, quarantine; and histories made from a seed."""
