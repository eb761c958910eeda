"""Following the topics of a calendar: which intervals are read now, and by which consumer."""
