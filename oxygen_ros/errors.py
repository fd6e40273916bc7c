"""Errors that a user can mend. Command lines print their text as one line, without a traceback."""


class OxygenError(Exception):
    """Base class. The text names the thing, the offending value and the remedy, in one line."""


class ConfigError(OxygenError):
    """A parameter, a configuration file, a robot file or a model name is wrong."""


class BagError(OxygenError):
    """A recording cannot be read."""
