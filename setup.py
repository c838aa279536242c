"""Tell setuptools which folders are which packages.

A new folder of code or data needs no entry here or in `pyproject.toml`: each folder below these two is found.
The rules stand in `patterns/` at the top of the repository and are installed as `ortfuse.patterns`.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = {"ortfuse": "ortfuse", "ortfuse.patterns": "patterns"}
"""The folder of each root package."""


def packages(root: str) -> list[str]:
    """List a root package and all packages in its folder."""
    return [root, *(f"{root}.{name}" for name in find_namespace_packages(FOLDERS[root], exclude=["*__pycache__*"]))]


setup(package_dir=FOLDERS, packages=[package for root in FOLDERS for package in packages(root)])
