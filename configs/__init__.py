"""Robots, tasks, suites and bundles that ship with the project, found by `real.config`."""
