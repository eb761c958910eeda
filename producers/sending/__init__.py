"""How sends get from a producer to the client: the producers, the bound on sends under way, what an outcome means."""
