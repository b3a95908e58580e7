"""The module files build the pinned versions from released libraries."""

import re

import pytest

from tools.stack import gomod, versions
from tools.stack.paths import MODULES

KUBERNETES_GO_MOD = """\
module k8s.io/kubernetes

require (
\tk8s.io/api v0.0.0
\tgithub.com/other/thing v1.2.3
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
\tgithub.com/other/thing => github.com/fork/thing v1.2.4
)

replace k8s.io/kubelet => ./staging/src/k8s.io/kubelet
"""


def test_libraries_with_relative_paths_are_found_and_forks_are_not() -> None:
    assert gomod.staging_modules(KUBERNETES_GO_MOD) == ["k8s.io/api", "k8s.io/apimachinery", "k8s.io/kubelet"]


def test_each_library_is_replaced_by_its_released_version() -> None:
    text = gomod.render(gomod.KUBERNETES, ["k8s.io/api", "k8s.io/kubelet"])
    released = versions.staging_version(versions.KUBERNETES)
    assert f"require k8s.io/kubernetes v{versions.KUBERNETES}" in text
    assert f"replace (\n\tk8s.io/api => k8s.io/api {released}\n\tk8s.io/kubelet => k8s.io/kubelet {released}\n)" in text
    assert "\tk8s.io/kubernetes/cmd/kube-apiserver\n" in text


def test_a_module_without_libraries_of_its_own_replaces_nothing() -> None:
    assert "replace" not in gomod.render(gomod.ETCD)
    assert "godebug" not in gomod.render(gomod.ETCD)


@pytest.mark.parametrize(("release", "library"), [("1.36.3", "v0.36.3"), ("1.40.0", "v0.40.0")])
def test_library_version(release: str, library: str) -> None:
    assert versions.staging_version(release) == library


def test_library_version_of_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\.0\.0"):
        versions.staging_version("2.0.0")


@pytest.mark.parametrize("module", gomod.ALL, ids=lambda module: module.name)
def test_the_kept_module_files_are_those_of_the_pinned_versions(module: gomod.Module) -> None:
    folder = MODULES / module.name
    kept = (folder / "go.mod").read_text(encoding="utf-8")
    # Go calls it indirect, as no source file of the module imports it.
    required = rf"^(require )?\t?{re.escape(module.requires)} {re.escape(module.version)}( // indirect)?$"
    assert re.search(required, kept, re.MULTILINE)
    for package in module.packages:
        assert re.search(rf"^(tool )?\t?{re.escape(package)}$", kept, re.MULTILINE)
    # Without a sum for it, the build would ask the network instead of failing on a changed module.
    assert f"{module.requires} {module.version} h1:" in (folder / "go.sum").read_text(encoding="utf-8")


def test_every_kubernetes_library_is_released_at_the_same_version() -> None:
    kept = (MODULES / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    replaced = re.findall(r"^\t(\S+) => (\S+) (\S+)$", kept, re.MULTILINE)
    assert len(replaced) == 33
    assert {version for _, _, version in replaced} == {versions.staging_version(versions.KUBERNETES)}
    assert all(old == new for old, new, _ in replaced)


def test_kafkas_jars_are_those_of_the_pinned_version() -> None:
    pom = (MODULES / "kafka" / "pom.xml").read_text(encoding="utf-8")
    assert f"<kafka.version>{versions.KAFKA}</kafka.version>" in pom
