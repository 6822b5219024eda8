"""Hydra, which finds this module by its place, finds ``stack=cpu`` and ``stack=cpu_separate``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class VerlCPU(SearchPathPlugin):
    """Adds the package, with its folder ``stack/``, after all others."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("verl_cpu", "pkg://verl_cpu")
