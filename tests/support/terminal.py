"""Output as a terminal shows it."""


def shown_lines(errors):
    """The lines that stay on the terminal after progress bars have been wiped out."""
    shown = [line.rsplit("\r", 1)[-1] for line in errors.split("\n")]
    return [line for line in shown if line.strip()]
