"""`python -m nnslicer_tf.cli`: the command line, if its script is not on the path."""

from nnslicer_tf.cli.application import main

if __name__ == "__main__":
    main()
