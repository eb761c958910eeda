"""The way of messages from the client to the engine, and of its commands back to the client."""
