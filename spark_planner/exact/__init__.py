"""A history played through a plan timer by timer on Spark, and its gaps counted as a broker counts them."""
