"""The shadow: takes what is far from due out of a topic that plain clients use, and puts it back near its time.

No producer and no consumer has to change, in whatever language they are. ``machine`` decides (pure), ``driver`` speaks
to brokers, `Shadow` runs both; the rest looks at a topic before, meanwhile and afterwards.
"""
