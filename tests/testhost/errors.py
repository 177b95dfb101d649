"""What can go wrong around a test host; owns the difference between "cannot be had here" and "broke"."""


class Unavailable(Exception):
    """This machine cannot provide what a test needs; the message is the skip reason."""


class HostError(Exception):
    """A test host refused or failed a command it should have carried out."""
