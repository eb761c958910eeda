"""The relay's decisions, pure: positions and moments in, commands out. No clock, thread, socket or client."""
