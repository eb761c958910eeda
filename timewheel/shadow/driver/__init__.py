"""The parts that talk to brokers: movers, strikers, and the code that watches the topic for them."""
