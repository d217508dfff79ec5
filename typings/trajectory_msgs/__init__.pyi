"""For the type checker only."""
