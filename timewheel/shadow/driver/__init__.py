"""What speaks to brokers: lifters, strikers, and who looks after them."""
