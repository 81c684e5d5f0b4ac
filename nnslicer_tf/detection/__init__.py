"""Detect adversarial inputs from slices, and the attacks that make such inputs."""
