"""The shadow: takes timers that are far from due out of a topic that plain clients use, and puts them back near their
time.

No producer and no consumer has to change, in any language. ``machine`` decides (pure), ``driver`` talks to brokers,
`Shadow` runs both; the other modules inspect a topic before, during and after.
"""
