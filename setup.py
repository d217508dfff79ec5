"""For colcon, which asks a Python package for a setup.py; everything is said in pyproject.toml."""

from typing import Any

from setuptools import Distribution, setup


class PlainDistribution(Distribution):
    """What pyproject.toml says, in plain texts: colcon reads it back as Python literals."""

    def parse_config_files(self, *args: Any, **kwargs: Any) -> None:
        """Read pyproject.toml, whose Python version becomes an object there."""
        super().parse_config_files(*args, **kwargs)
        facts: list[Any] = [self, self.metadata]
        for holder in facts:
            holder.python_requires = str(holder.python_requires)


setup(distclass=PlainDistribution)
