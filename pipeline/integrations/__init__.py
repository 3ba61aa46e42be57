"""Repair inside of the process of a framework. A module imports the framework that the user installed, or none."""
