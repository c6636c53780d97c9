"""lowbit's checkpoints from Python: reading, writing (NumPy alone) and recovery by training (`python -m lowbit.recover`, torch)."""

from .checkpoint import Checkpoint, LayerSpec, QuantizedWeight, write_checkpoint
from .errors import LowbitError

__version__ = "0.1.0"
__all__ = ["Checkpoint", "LayerSpec", "LowbitError", "QuantizedWeight", "write_checkpoint", "__version__"]
