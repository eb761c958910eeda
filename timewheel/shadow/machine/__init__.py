"""The decisions about a topic's entries, without a socket, a clock or a thread."""
