"""Settings: every mistake is one line that names the setting, the value and what is allowed."""

from pathlib import Path

import pytest
import yaml

from data.errors import UserError
from flows.config import load

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("aggregation.sigma=-1", "aggregation.sigma = -1: input should be greater than 0"),
        ("aggregation.sigma=.nan", "aggregation.sigma = nan: input should be a finite number"),
        ("aggregation.sgima=1", "aggregation.sgima: is not a setting; did you mean aggregation.sigma?"),
        ("aggregation.delta=1", "aggregation.delta = 1: input should be less than 1"),
        ("aggregation.mechanism=lnmax", "aggregation.scale: must be set for lnmax"),
        ("teachers.model=resnet", "teachers.model: must be one of logistic, mlp, cnn"),
        ("student.model=tanh-cnn", "student.model: must be one of logistic, mlp, cnn, convnet, or sklearn:"),
        ("teachers.empty_vote=10", "teachers.empty_vote = 10: must be below the 10 classes"),
        ("ledger.delta=1e-5", "aggregation.delta = 0.0001: must be the ledger's delta = 1e-05"),
        ("baseline.delta=1e-5", "baseline.delta = 1e-05: must be the ledger's delta = 0.0001"),
        ("aggregation.max_queries=10", "queries.count = 40: must be at most aggregation.max_queries = 10"),
        ("data.source=parquet", "data.label: must name the label column"),
        ("data.label=x", "data.label: is for parquet, csv, npz sources, not for digits"),
        ("seed=abc", "seed = 'abc': input should be a valid integer"),
        ("teachers.count", "--set 'teachers.count': must be key.sub=value"),
        ("name=../x", "name = '../x'"),
        ("data.root=${NO_SUCH_VARIABLE}", "data.root = '${NO_SUCH_VARIABLE}': the environment variable NO_SUCH"),
    ],
)
def test_a_wrong_setting_is_one_line(small_config: Path, option: str, expected: str) -> None:
    """Field, value and what is allowed; the nearest right name for an unknown key."""
    with pytest.raises(UserError) as caught:
        load(small_config, [option])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_runs_name_is_the_configs_stem_unless_given(small_config: Path) -> None:
    """--run overrides, --set changes, ${NAME} expands."""
    assert load(small_config).name == "small"
    assert load(small_config, run="other").name == "other"
    assert load(small_config, ["teachers.count=7"]).teachers.count == 7


def test_environment_variables_expand(small_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """${NAME} inside a text becomes the variable's value."""
    monkeypatch.setenv("WHERE", "/somewhere")
    assert load(small_config, ["data.root=${WHERE}/data"]).data.root == "/somewhere/data"


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "", "\x00"])
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, text: str) -> None:
    """Broken YAML, a list, nothing."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"x\.yaml: "):
        load(path)


@pytest.mark.parametrize("name", ["digits", "mnist", "adult"])
def test_shipped_configs_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every config that we ship loads, with room on its ledger."""
    monkeypatch.setenv("PATE_TEST_DATA", "/nowhere")
    settings = load(CONFIGS / f"{name}.yaml")
    assert settings.name == name
    assert settings.ledger.epsilon == 100
    assert settings.data.public_benchmark == (name != "adult")


def test_the_deployment_runs_the_demos_settings() -> None:
    """prefect.yaml holds configs/digits.yaml, word for word."""
    deployed = yaml.safe_load((CONFIGS.parent / "prefect.yaml").read_text())["deployments"][0]
    assert deployed["parameters"]["config"] == yaml.safe_load((CONFIGS / "digits.yaml").read_text())
