"""Repair inside of the process of a framework: each module fits the framework that is installed, and imports none."""
