"""Imported by vLLM in each process that holds a part of the model, before it takes a GPU: see
EndsWithParent.
"""

from __future__ import annotations

from exgrpo_eval.generate.copies import end_with_parent


class EndsWithParent:
    """Adds nothing to vLLM's worker; to find it (worker_extension_cls), vLLM imports this module.

    vLLM's workers of a tensor-parallel model watch their parent only once the model is loaded, and
    one that is loaded before the others waits for the parent's first message without end.
    """


end_with_parent()
