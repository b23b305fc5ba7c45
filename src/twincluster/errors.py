"""The exceptions a user is meant to read, with what to do about them."""


class InputError(ValueError):
    """Something the user can fix. The command line prints it as one line and exits with status 2."""


class ProcessEnded(RuntimeError):  # noqa: N818  (nothing went wrong here)
    """One of several processes that train together is gone, and the run with it. One line, and status 1."""
