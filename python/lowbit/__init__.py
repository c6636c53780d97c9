"""lowbit from Python: checkpoints (NumPy alone), the runtime (with liblowbit.so) and recovery by training (`python -m
lowbit.recover`, torch)."""

from .checkpoint import Checkpoint, LayerSpec, QuantizedWeight, write_checkpoint
from .errors import LowbitError
from .runtime import Model, Session, TokenLogprobs, append_together

__version__ = "0.1.0"
__all__ = ["Checkpoint", "LayerSpec", "LowbitError", "Model", "QuantizedWeight", "Session", "TokenLogprobs", "append_together", "write_checkpoint", "__version__"]
