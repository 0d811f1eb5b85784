"""Which release this is. On its own, because parts that `fairlead` itself imports must know it too."""

__version__ = "0.1.0"
