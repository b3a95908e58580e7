"""The one error that the local stack raises.

Its text is a sentence for a person: what is missing or what went wrong, and what helps. The command line prints it as
it is, without a trace.
"""


class StackError(Exception):
    """The local stack cannot do what was asked."""
