"""Charts and the page around them: values in, HTML out. Shared by the demo and the planner only."""
