"""The command line `nnslicer`: every analysis, without any Python code.

Bad input gives one line on standard error and exit code 2, before long work starts. Keras is
imported only when a command needs it, so that `--help` responds at once.
"""

from nnslicer_tf.cli.application import main

__all__ = ["main"]
