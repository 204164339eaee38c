"""Retired terms do not return: the package, its documentation and its tests use the standard terms of the field."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Retired phrases (regular expressions; a space also matches an underscore or a line break) and what to write instead.
PHRASES = {
    r"whole numbers?": "integer",
    r"(a|the|no|each|every|which|one|this|real|simulated) cards?|cards": "GPU",
    r"tells? whether": "return whether",
    r"told": "a standard verb: set, given, reported",
    r"way (back|through)": "backward pass, unrolled steps",
    r"there and back": "forward and backward",
    r"rehears(al|als|e|ed)": "dry run",
    r"ghosts?": "meta array",
    r"ledgers?": "memory tracker",
    r"judg(e|es|ed|ing)": "evaluate",
    r"(lie|lies|lay|lying|left|stay|stays) apart": "NHWC, channels last",
    r"rooms?": "layout cache, workspace, memory",
    r"of (its|one's|your|their|our|his) own": "custom, separate, your own ...",
    r"as it lies": "in memory order",
    r"by heart": "memorize",
    r"anew": "again, new",
    r"behind a (whole )?step": "after a complete step",
    r"work(s|ed|ing)? out": "compute, evaluate",
    r"is to be": "must",
    r"(?<!alibi_)slopes": "numerical gradients",
    r"maps (of a pixel )?side by side": "NHWC, channels last",
    r"goes on from": "resumes, continues",
}
# Retired names and their replacements.
NAMES = {
    "Astray": "WrongDeviceError",
    "AtOnce": "FusedRecurrence",
    "BAKED": "STATIC_INTS",
    "Bookkeeping": "memory, timing",
    "Buffered": "BufferOwner",
    "CardProducts": "CudaMatmul",
    "Described": "Serializable",
    "Emptied": "NhwcWrite",
    "ErrorSum": "GradientSum",
    "Filling": "RecurrentInitializer",
    "GANCosts": "GANCostCallback",
    "HALVES": "HALF_DTYPES",
    "ImageCalls": "ImageMethods",
    "Interruptible": "DeferredInterrupt",
    "Keeper": "Reorderer",
    "LOOKED_UP": "a threshold: its unit and what it limits",
    "Launching": "KernelLauncher",
    "Learned": "TensorAttribute",
    "LearnedPosition": "PositionEmbedding",
    "Ledger": "MemoryTracker",
    "Listener": "CallbackBase",
    "Making": "creation",
    "Moves": "CapturedLayouts",
    "NOT_YET": "BPROP_WITHOUT_FPROP",
    "NoRoom": "OutOfMemoryError",
    "NormApart": "primitives.norm",
    "NormCalls": "NormMethods",
    "OfColumns": "ColumnMetric",
    "OfSequences": "SequenceMetric",
    "PlannedError": "PlannedGradient",
    "Prepared": "CompiledAssignment",
    "ProductCalls": "MatmulMethods",
    "READABLE": "MAX_DISPLAYED_NODES",
    "RegionCalls": "RoiMethods",
    "Rehearsal": "MetaRuntime",
    "StepByStep": "StepRecurrence",
    "Uncapturable": "CaptureError",
    "WAY_OUT": "INSTALL_HINT",
    "WRITTEN_OUT": "HAND_WRITTEN",
    "_clashes": "aliases",
    "_crossed": "targets_alias",
    "_ends_stage": "_is_written_last",
    "_lent": "exported",
    "_note_bounds": "_record_int_ranges",
    "_put_off": "_sink_steps",
    "_run_several": "run_tree",
    "_run_wide": "run_tree",
    "_torn": "_reshape_needs_copy",
    "_unstretched": "_skip_broadcasts",
    "adds_up": "is_additive",
    "begins_anew": "is_reused",
    "blank_inputs": "make_zero_inputs",
    "blank_targets": "make_zero_targets",
    "c_strides": "contiguous_strides",
    "can_lie_apart": "can_cache_nhwc",
    "check_carried": "check_state",
    "check_judged": "check_can_evaluate",
    "conv_with_bias": "try_conv_bias",
    "defined_anew": "num_redefinitions",
    "error_of": "branch_error",
    "factor_within_norm": "clip_factor",
    "find_cost": "compute_cost",
    "find_gradients": "compute_gradients",
    "form_of": "image_shape",
    "from_output": "has_grad_from_output",
    "gives_signs": "has_binary_outputs",
    "grad_extreme": "grad_minmax_reduction",
    "grad_larger": "grad_maximum",
    "had_rooms": "had_layout_caches",
    "hand_on": "pass_states",
    "has_rooms": "supports_nhwc",
    "holds_floats": "is_float_array",
    "holds_numbers": "is_real_array",
    "ids_of": "get_token_ids",
    "is_shown": "is_exported",
    "kernels_are_on": "are_kernels_enabled",
    "known_as": "key",
    "leaf_info": "tensor_info",
    "lies_apart": "layout_of",
    "mask_limit": "mask_threshold",
    "may_take": "can_write_nhwc",
    "method_of": "make_method",
    "needs_validation": "require_eval_set",
    "negative_steps": "supports_negative_strides",
    "no_room": "out_of_memory_error",
    "norm_rows_bprop": "row_norm_bprop",
    "norm_rows_fprop": "row_norm_fprop",
    "note_histogram": "record_histogram",
    "numbers_of": "to_array",
    "pairs_with": "paired_activation",
    "part_letter": "subexpression_prefix",
    "place_of": "plan_branch_error",
    "plus_steps": "add_per_step",
    "read_images": "read_chwn",
    "reads_columns": "layout",
    "reads_outputs": "needs_outputs",
    "rectifies": "supports_fused_relu",
    "recurrent_room": "recurrent_workspace_size",
    "reduced_nonempty": "nonempty_reduction_shape",
    "remade": "deserialize",
    "run_unslice": "run_slice_backward",
    "same_form": "check_structure",
    "same_images": "is_same_tensor",
    "spell_infix": "format_node_infix",
    "spell_triple": "format_node_triple",
    "stacked_product": "matmul_shape",
    "step_generator": "train_step_generator",
    "sum_maps": "sum_channels",
    "take_up": "resume",
    "taken_up": "resumed",
    "tf32_is_wanted": "is_tf32_enabled",
    "told_by": "config_attributes",
    "trees_apart": "supports_nhwc_trees",
    "two_dims": "at_least_2d",
    "unfolds": "fits_on_line",
    "using_avx512": "numpy_uses_avx512",
    "way_through": "slice_direction",
    "way_through_time": "unroll",
    "with_steps": "check_sequence_shape",
    "written_images": "write_chwn",
}

SUFFIXES = {".py", ".pyi", ".cuh", ".h", ".cpp", ".md", ".ipynb", ".toml"}
FOLDERS = ["neonlite", "docs", "notebooks", "examples", "tests", "benchmarks"]
FILES = [
    path
    for path in sorted(
        [*ROOT.glob("*.md"), ROOT / "pyproject.toml", *(p for f in FOLDERS for p in (ROOT / f).rglob("*"))]
    )
    if path.suffix in SUFFIXES
    and path.name not in (Path(__file__).name, "CHANGELOG.md")
    and path.parent.name not in ("results", "kernels")
]


def text_of(path: Path) -> str:
    """Return the text of a file; that of a notebook is the source of its cells."""
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    return path.read_text()


def find(pattern: str, text: str) -> list[str]:
    """Return the lines of a text, with their numbers, in which a pattern begins."""
    starts = [text.count("\n", 0, match.start()) for match in compile_phrase(pattern).finditer(text)]
    lines = text.split("\n") if starts else []
    return [f"{start + 1}: {lines[start].strip()}" for start in starts]


@cache
def compile_phrase(pattern: str) -> re.Pattern[str]:
    """Return a phrase as an expression that also finds it in names and across line breaks."""
    gap = r"(?:[ _]|\s+(?:#:? )?)"
    return re.compile(rf"(?<![A-Za-z])(?:{pattern.replace(' ', gap)})(?![A-Za-z])", re.IGNORECASE)


def find_names(text: str) -> list[str]:
    """Return the retired names in a text, with their replacements."""
    return [f"{name} -> {NAMES[name]}" for name in sorted(set(re.findall(r"\w+", text)) & NAMES.keys())]


@pytest.mark.long
def test_no_file_uses_a_retired_term():
    any_phrase = "|".join(f"(?:{phrase})" for phrase in PHRASES)
    retired = []
    for path in FILES:
        text = text_of(path)
        found = (
            [f"{line}  -> {new}" for old, new in PHRASES.items() for line in find(old, text)]
            if find(any_phrase, text)
            else []
        )
        retired += [f"{path.relative_to(ROOT)}: {line}" for line in found + find_names(text)]
    assert not retired, "\n".join(retired)


def test_a_retired_term_is_found_across_a_line_break_and_in_a_name():
    assert find("whole numbers?", "a whole\n# number") == ["1: a whole"]
    assert find("whole numbers?", "def is_whole_number(x):") == ["1: def is_whole_number(x):"]
    assert not find("rooms?", "a bathroom")
    assert find_names("self.told_by = Ledger") == ["Ledger -> MemoryTracker", "told_by -> config_attributes"]
