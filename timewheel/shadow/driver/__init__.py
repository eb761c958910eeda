"""The parts that talk to brokers: lifters, strikers, and the code that watches the topic for them."""
