"""The public object `Fairlead` and the parts that it consists of."""

from fairlead.app.fairlead import Fairlead

__all__ = ["Fairlead"]
