"""Learning a policy from rollouts, and turning it into a bundle."""
