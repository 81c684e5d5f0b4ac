"""Training of the zoo's models, with a log."""
