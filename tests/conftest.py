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
    "deepxplore/test_generate.py::test_differences_lie_between_the_thresholds[constraint1]",
    "detection/test_attacks.py::test_batches_are_made_once_and_resumed[Boundary]",
    "detection/test_attacks.py::test_batches_are_made_once_and_resumed[Pointwise]",
    "detection/test_challenge.py::test_a_folder_gives_nothing_that_was_made_for_other_settings[a",
    "detection/test_challenge.py::test_a_folder_gives_nothing_that_was_made_for_other_settings[la",
    # The votes of the preset "stable" are these and more.
    "detection/test_challenge.py::test_smooth_scores_rank_like_the_true_ones[fused]",
    "detection/test_challenge.py::test_smooth_scores_rank_like_the_true_ones[margin]",
    "detection/test_detector.py::test_one_sigmoid_is_two_classes[fused-amount]",
    "detection/test_detector.py::test_one_sigmoid_is_two_classes[margin-count]",
    "detection/test_detector.py::test_one_sigmoid_is_two_classes[paper-amount]",
    "detection/test_smallest_changes.py::test_the_smallest_change_of_a_linear_model[approach-l2",
    "detection/test_smallest_changes.py::test_the_smallest_change_of_a_linear_model[minimum-linf",
    "pruning/test_nested.py::test_the_units_of_recurrent_layers_are_candidates[LSTM]",
    "pruning/test_nested.py::test_the_units_of_recurrent_layers_are_candidates[SimpleRNN]",
    "pruning/test_prune.py::test_labels_may_be_one_hot[float32-ranker1]",
    "pruning/test_prune.py::test_labels_may_be_one_hot[int-ranker0]",
    "pruning/test_recurrent_units.py::test_masks_of_recurrent_kernels_stay_in_training[<lambda>-rnn/k",
    "pruning/test_recurrent_units.py::test_removed_units_leave_smaller_layers_of_equal_outputs[gru]",
    "pruning/test_shrinking.py::test_residual_networks_and_a_softmax_shrink[global]",
    "semantic/test_recurrent_units.py::test_only_chosen_units_are_trained[gru]",
    "semantic/test_recurrent_units.py::test_taylor_scores_are_slopes_by_factors_of_the_states[l",
    "semantic/test_recurrent_units.py::test_taylor_scores_are_slopes_by_factors_of_the_states[s",
    "semantic/test_recurrent_units.py::test_units_are_neurons_and_masked_ones_are_removed[gru, ",
    # The second layer is an LSTM in all of them.
    "semantic/test_recurrent_units.py::test_units_are_neurons_and_masked_ones_are_removed[lstm",
    "semantic/test_recurrent_units.py::test_units_are_neurons_and_masked_ones_are_removed[simple",
    "semantic/test_selective_training.py::test_no_optimizer_moves_frozen_parameters[adam with",
    *(
        f"slicing/test_against_oracle.py::{test}[{seed}]"
        for test, seeds in {
            "test_random_models": range(8, 24),
            "test_random_models_by_channel": range(4, 12),
        }.items()
        for seed in seeds
    ),
    *(
        f"slicing/test_against_oracle.py::test_random_models_with_one_reading_changed[{seed}-"
        for seed in (2, 3)
    ),
    # With padding, more is checked than without.
    *(
        f"slicing/test_amounts.py::test_amounts_through_time_add_up[False-{name}"
        for name in ("gru", "both ways", "stacked")
    ),
    *(f"slicing/test_amounts.py::test_amounts_of_attention_add_up[{seed}" for seed in (3, 4)),
    *(f"slicing/test_amounts.py::test_random_models[{seed}-" for seed in (3, 4, 5)),
    "slicing/test_explanation.py::test_a_mask_that_is_always_the_same_is_not_a_dead_network[0.5",
    "slicing/test_explanation.py::test_any_target_of_any_model[pixel",
    "slicing/test_real_models.py::test_independence_of_batch_size_and_order[resnet20-activation-0.0",
    "slicing/test_recurrence.py::test_midpoints_of_products[lstm",
    *(
        f"slicing/test_recurrence.py::test_table[{name}]"
        for name in (
            *("lstm without bias", "gru without bias"),
            *("two layers", "conv 1d", "both ways sum", "stacked cells", "one cell"),
        )
    ),
    "slicing/test_recurrence.py::test_usual_activations[GRU",
    *(
        f"slicing/test_sequences_against_oracle.py::{test}[{seed}]"
        for test, seeds in {
            "test_random_models": range(3, 14),
            "test_means_of_each_position": (16, 17),
            "test_relative_to_the_sum": (20,),
            "test_midpoints_of_products": (23, 24, 25, 26),
        }.items()
        for seed in seeds
    ),
    *(
        f"slicing/test_strides.py::test_synapses_equal_those_of_a_walk_that_excludes_nothing[{name}]"
        for name in ("same", "one axis", "1-D", "transposed 1-D", "transposed same")
    ),
    *(
        f"slicing/test_transformers.py::{test}"
        for name in ("vision", "decoder")
        for test in (
            f"test_masks_of_pruning_hold_in_training[{name}]",
            f"test_contributions_of_the_attention_output[{name}-taylor]",
        )
    ),
    "zoo/test_training.py::test_an_interrupted_run_resumes_exactly[changes0]",
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
