"""Import of Keras without its backend's start-up messages, for command lines."""

import os
import tempfile


def import_keras_quietly() -> None:
    """Import Keras and hide its backend's messages, which would bury a command's output.

    The messages come from C++ before its log level takes effect, so standard error itself is
    redirected to a file, which is shown if the import fails.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    standard_error = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import keras

            if keras.backend.backend() == "tensorflow":
                import tensorflow as tf

                tf.config.list_physical_devices()  # looks for a GPU and prints messages
                tf.get_logger().setLevel("ERROR")  # it warns of compiling different functions
        except BaseException:
            hidden.seek(0)
            os.write(standard_error, hidden.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
