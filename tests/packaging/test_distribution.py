"""What a user installs: the wheel and the sdist."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tests.support.checkout import files, package_modules
from tests.support.distribution import Distribution, build_wheel, copy_of_checkout, wheel_files


def _installed_name(module: Path) -> str:
    """Where a file of package code stands in the wheel."""
    return str(module if module.parts[0] == "timewheel" else Path("timewheel") / module)


def test_the_wheel_holds_every_file_of_package_code_its_data_and_the_licence(built: Distribution) -> None:
    names = wheel_files(built.wheel)
    templates = {str(path) for path in files() if path.parent == Path("timewheel/_report/templates")}

    assert {name for name in names if name.endswith(".py")} == {_installed_name(path) for path in package_modules()}
    assert {PurePosixPath(name).parts[0] for name in names} == {"timewheel", "pulsar_timewheel-0.1.0.dist-info"}
    assert len(templates) == 5
    assert names >= templates | {
        "timewheel/py.typed",
        "timewheel/spark_planner/log4j2.properties",
        "pulsar_timewheel-0.1.0.dist-info/licenses/LICENSE",
    }
    assert wheel_files(built.wheel_of_sdist) == names, "the wheel of the sdist is the wheel of the checkout"


def test_a_checkout_without_links_builds_the_same_wheel(built: Distribution, tmp_path: Path) -> None:
    source = copy_of_checkout(tmp_path / "checkout", links=False)

    assert wheel_files(build_wheel(source, tmp_path / "out")) == wheel_files(built.wheel)
