"""`exgrpo.buffer` by its old name, for one version; the trainer's replay is exgrpo/experience/."""

import sys
import warnings

from exgrpo import buffer

_NOW = "exgrpo.replay is exgrpo.buffer now; the old name goes with the next version"
warnings.warn(_NOW, DeprecationWarning, stacklevel=2)
for _name, _module in list(sys.modules.items()):
    if _name.startswith(buffer.__name__):
        sys.modules[_name.replace(buffer.__name__, __name__, 1)] = _module
