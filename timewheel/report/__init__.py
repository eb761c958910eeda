"""Charts and the page around them: values in, HTML out. Shared by the demo and the planner."""

from timewheel.report.bars import Bar, BarChart, bar_chart
from timewheel.report.chart import GapChart, Mark, Series, gap_chart
from timewheel.report.page import Figure, Page, Section, Table, render_page
from timewheel.report.scatter import Choices, Named, choice_chart

__all__ = [
    "Bar",
    "BarChart",
    "Choices",
    "Figure",
    "GapChart",
    "Mark",
    "Named",
    "Page",
    "Section",
    "Series",
    "Table",
    "bar_chart",
    "choice_chart",
    "gap_chart",
    "render_page",
]
