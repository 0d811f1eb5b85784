"""Fronts: protocols of other systems, translated into jobs. A front knows the `Fairlead` object, nothing below it."""
