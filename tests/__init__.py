"""A package, so that workers which import a test's functions find this `tests` and not the one in IPython/extensions,
which IPython 7 and 8 put on the search path."""
