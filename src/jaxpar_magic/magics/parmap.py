"""`%parmap` and `%%parmap`."""
from IPython.core.magic import Magics, magics_class


@magics_class
class ParmapMagics(Magics):
    pass
