"""`UserError`, the class of errors that the user can correct."""


class UserError(ValueError):
    """A user's mistake in an option, a key of a config, a file, or an argument in Python.

    Its message is one line that names the option, the key, the file or the record, and what to do about it. The command
    line prints it and exits with 1; the web page answers 400. Any other ValueError is a bug. So if a library raises a
    ValueError about a user's file, or a user's class about its arguments, it is converted where the file or the key is
    known.
    """

    __module__ = "vision_attn"  # its public name, which a traceback shows
