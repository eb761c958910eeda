"""The gap chart and the page around it: values in, HTML out. Shared by the demo and the planner."""

from timewheel.report.chart import GapChart, Mark, Series, gap_chart
from timewheel.report.page import Page, Table, render_page

__all__ = ["GapChart", "Mark", "Page", "Series", "Table", "gap_chart", "render_page"]
