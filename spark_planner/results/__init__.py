"""What was found, for people and programs: tables, facts as JSON, the verdict, the report."""
