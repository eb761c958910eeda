"""How messages get from the client to the engine, and its answers back."""
