"""`%jaxdevices`."""
from IPython.core.magic import Magics, magics_class


@magics_class
class JaxDevicesMagics(Magics):
    pass
