"""The one exception a user is meant to read: bad input, with what to do about it."""


class InputError(ValueError):
    """Something the user can fix. The command line prints it as one line and exits with status 2."""
