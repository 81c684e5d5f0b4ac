"""Metadata and options are in setup.cfg."""

from setuptools import setup

setup()
