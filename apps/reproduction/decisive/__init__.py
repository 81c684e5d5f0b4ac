"""Which synapses decide: slices compared with other rankings by keeping only their largest."""
