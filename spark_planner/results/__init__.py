"""The planner's output for readers and programs: tables, facts as JSON, the verdict, the report."""
