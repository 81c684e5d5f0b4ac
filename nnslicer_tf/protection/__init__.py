"""Protection: hide the synapses that target classes need most."""

__all__: list[str] = []
