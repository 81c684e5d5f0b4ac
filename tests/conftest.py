"""Shared fixtures: the material beside the project, where it is there."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX has no float64 otherwise
# Two processes share the cores, and models are tiny: threads of matrix products only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import gc
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest

# Nothing is timed in the tests: the first example of one may wait for an import.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Tests that run something whole: they take a third of the time, and `pytest` alone leaves them out.
WHOLE = (
    "reproduction/*/*.py",
    "gauntlet/test_gauntlet.py",
    "report/explorer/test_browser_*.py",
    "slicing/test_ray.py",
    "instrument/test_applications.py",
    "cli/test_processes.py",
    "test_notebooks.py",
)
WHOLE_TESTS = (
    "cli/test_commands.py::test_demo",
    "cli/test_commands.py::test_deviations_become_a_table_a_picture_and_a_suite",
    "cli/test_commands.py::test_sentences_are_explored_with_their_words",
    "dflare/test_small_changes.py::test_a_suite_fails_for_the_model_that_deviated",
    "engine/test_sharing.py::test_a_forked_process_is_refused_in_words",
    "report/explorer/test_widget.py::test_a_notebook_shows_the_widget",
    "test_compiled.py::test_kernels_are_compiled_ahead_by_other_processes",
)

# Cases that take long, of tests that run with other cases: beginnings of names.
SLOW = (
    "attributions/test_for_and_against.py::test_deeplift_adds_up_through_time[both ways]",
    "debugging/test_comparison.py::test_a_badly_rounded_layer_of_a_transformer[block2_mlp2]",
    "debugging/test_comparison.py::test_a_badly_rounded_layer_of_a_transformer[embedding]",
    "debugging/test_keras_copies.py::test_twins_of_models_that_keras_quantised[False-int8]",
    "debugging/test_keras_copies.py::test_twins_of_models_that_keras_quantised[True-int4]",
    "detection/test_challenge.py::test_a_folder_gives_nothing_that_was_made_for_other_settings[a",
    "pruning/test_nested.py::test_the_units_of_recurrent_layers_are_candidates[LSTM]",
    "pruning/test_nested.py::test_the_units_of_recurrent_layers_are_candidates[SimpleRNN]",
    "pruning/test_shrinking.py::test_residual_networks_and_a_softmax_shrink[global]",
    "semantic/test_recurrent_units.py::test_only_chosen_units_are_trained[gru]",
    "semantic/test_recurrent_units.py::test_taylor_scores_are_slopes_by_factors_of_the_states[l",
    "semantic/test_recurrent_units.py::test_taylor_scores_are_slopes_by_factors_of_the_states[s",
    "semantic/test_recurrent_units.py::test_units_are_neurons_and_masked_ones_are_removed[gru, ",
    "semantic/test_recurrent_units.py::test_units_are_neurons_and_masked_ones_are_removed[simple",
    "semantic/test_recurrent_units.py::test_units_of_the_zoos_lstm",
    "slicing/test_real_models.py::test_independence_of_batch_size_and_order[resnet20-activation-0.0",
    *(
        f"slicing/test_sequences_against_oracle.py::{test}[{seed}]"
        for test, seeds in {
            "test_random_models": range(7, 14),
            "test_means_of_each_position": (16, 17),
            "test_relative_to_the_sum": (20,),
            "test_midpoints_of_products": (24, 25, 26),
        }.items()
        for seed in seeds
    ),
)

# As before, of tests that run something whole; a weekly workflow runs these experiments.
SLOW_WHOLE = (
    "gauntlet/test_gauntlet.py::test_every_analysis_is_verified_or_refused[Bidirectional]",
    "gauntlet/test_gauntlet.py::test_every_analysis_is_verified_or_refused[GRU]",
    "gauntlet/test_gauntlet.py::test_every_analysis_is_verified_or_refused[stacked LSTMs]",
    "gauntlet/test_gauntlet.py::test_every_analysis_is_verified_or_refused[very deep]",
    "instrument/test_applications.py::test_application[DenseNet121]",
    "instrument/test_applications.py::test_application[InceptionResNetV2]",
    "instrument/test_applications.py::test_application[InceptionV3]",
    "instrument/test_applications.py::test_application[NASNetMobile]",
    "reproduction/circuits/test_transformers.py::test_the_experiment_on_one_network_of_each",
    "reproduction/debugging/test_compression.py::test_the_pair_is_compared_mended_and_searched",
    "reproduction/deepxplore/test_experiments.py::test_coverage_by_number",
    "reproduction/deepxplore/test_experiments.py::test_sweep_changes_one_setting_at_a_time",
    "reproduction/dflare/test_experiments.py::test_dissemination_has_a_row_for_each_share",
    "reproduction/dflare/test_experiments.py::test_sentences",
    "reproduction/exactline/test_experiments.py::test_advice_maps",
    "reproduction/exactline/test_experiments.py::test_compressions",
    "reproduction/neusemslice/test_experiments.py::test_case_study_of_a_trained_model",
    "reproduction/neusemslice/test_experiments.py::test_development[1]",
    "reproduction/neusemslice/test_experiments.py::test_repeats_that_ran_by_themselves_are_read",
    "reproduction/neusemslice/test_experiments.py::test_restructuring",
    "reproduction/neusemslice/test_trials.py::test_development_of_two_tasks",
    "reproduction/nnslicer/test_challenge.py::test_a_judge_says_what_the_detector_sums",
    "reproduction/nnslicer/test_challenge.py::test_evidences_are_compared",
    "reproduction/nnslicer/test_experiments.py::test_single_slices_by_each_reading",
    "reproduction/sentences/test_parts.py::test_the_experiment_on_the_zoos_model",
    "reproduction/sentences/test_rounding.py::test_the_experiment_on_the_zoos_model",
    "reproduction/sentences/test_words.py::test_the_experiment_on_the_zoos_model",
    "reproduction/zoo/test_training.py::test_quick_training_writes_weights_and_a_log",
    "slicing/test_real_models.py::test_independence_of_workers[resnet20]",
    "test_docs.py::test_the_code_of_a_page_runs[docs/tutorials/acas-xu]",
)

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real models and data sets; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with real models and data sets is not here")
    return SHARED


@pytest.fixture(scope="session")
def shared_data(shared) -> Path:
    """`shared`, with TFDS pointed at its prepared data sets."""
    os.environ.setdefault("TFDS_DATA_DIR", str(shared / "tfds"))
    return shared


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `WHOLE`, `WHOLE_TESTS`, `SLOW` and `SLOW_WHOLE`."""
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        name = f"{path}::{item.name}"
        if name in WHOLE_TESTS or any(fnmatch(path, pattern) for pattern in WHOLE):
            item.add_marker(pytest.mark.whole)
        if name.startswith((*SLOW, *SLOW_WHOLE)):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collect garbage less often: visiting the loaded modules, which stay, takes a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
