"""What a user installs: the wheel and the sdist."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tests.support.checkout import files, package_modules
from tests.support.distribution import Distribution, build_wheel, copy_of_checkout, wheel_files


def _installed_name(module: Path) -> str:
    """Where a file of package code stands in the wheel."""
    return str(module if module.parts[0] == "timewheel" else Path("timewheel") / module)


def test_the_wheel_holds_every_file_of_package_code(built: Distribution) -> None:
    modules = {name for name in wheel_files(built.wheel) if name.endswith(".py")}

    assert modules == {_installed_name(module) for module in package_modules()}


def test_the_wheel_installs_one_top_level_name(built: Distribution) -> None:
    tops = {PurePosixPath(name).parts[0] for name in wheel_files(built.wheel)}

    assert tops == {"timewheel", "pulsar_timewheel-0.1.0.dist-info"}


def test_the_wheel_carries_its_data_files_and_the_licence(built: Distribution) -> None:
    names = wheel_files(built.wheel)

    assert "timewheel/py.typed" in names
    assert "timewheel/spark_planner/log4j2.properties" in names
    templates = {str(path) for path in files() if path.parent == Path("timewheel/_report/templates")}
    assert len(templates) == 5
    assert templates <= names
    assert "pulsar_timewheel-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_checkout(built: Distribution) -> None:
    assert wheel_files(built.wheel_of_sdist) == wheel_files(built.wheel)


def test_a_checkout_without_links_builds_the_same_wheel(built: Distribution, tmp_path: Path) -> None:
    source = copy_of_checkout(tmp_path / "checkout", links=False)

    assert wheel_files(build_wheel(source, tmp_path / "out")) == wheel_files(built.wheel)
