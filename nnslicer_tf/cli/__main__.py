"""`python -m nnslicer_tf.cli`: the command line without its script."""

from nnslicer_tf.cli.application import main

if __name__ == "__main__":
    main()
