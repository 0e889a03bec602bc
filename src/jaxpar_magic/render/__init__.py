"""Documents to text and to HTML. Pure functions: no IPython, no jax, no feature of this package."""
