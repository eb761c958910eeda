"""The planner: from a history of delays to a plan, with Spark.

It needs the extra: ``pip install 'pulsar-timewheel[planner]'``, and Java 17 or newer. Nothing is imported here, so that
the parts that need no Spark can be had without it: `job` has the functions for a notebook (``survey``, ``plan_for``,
``predict``), `history.read` and `history.mapping` what they start from, `results.report_page` and `results.facts` what
comes out.
"""
