"""IPython's side of the package: the only room that imports IPython."""
