"""Tables of the checkpoint variants: which are read, shown by a fixture each, and which are refused, shown by a test each."""

from pathlib import Path

from hybrid_humming.checkpoint import ReadOptions, inspect
from hybrid_humming.checkpoint.config import read_config

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
ASKED = {"gptqmodel-w4-g16-asym-unlabelled": ReadOptions(gptq_zero_points="v1")}  # what these files don't say

# Methods whose layers tests/checkpoint/test_experts.py writes as experts one by one.
ONE_BY_ONE = ("auto-round", "awq", "compressed-tensors", "fp8", "gptq", "hqq", "modelopt", "quark")
REFUSED_STACKED = "test_experts::test_stacked_gptq_and_awq_experts_are_refused"

# (quant_method, what is refused, the test of its message)
REFUSED = [
    ("gptq", "`gptq_p`, the planar layout: GPTQModel's 5, 6, 7 bits", "test_gptq::test_the_planar_layout_is_refused_by_name"),
    ("gptq", "1, 5, 6, 7, 16 bits under another label", "test_gptq::test_widths_that_are_not_read_are_named"),
    ("gptq", "repacked for Marlin, BitBLAS, QQQ", "test_gptq::test_repacked_layouts_are_refused_by_name"),
    ("gptq", "`pack_dtype` other than int32", "test_gptq::test_words_other_than_int32_are_refused"),
    ("gptq", "asymmetric without label or flag", "test_gptq::test_an_asymmetric_layer_without_a_label_asks_for_the_flag"),
    (
        "gptq",
        "`g_idx` groups that share no multiple of 8",
        "test_gptq::test_groups_that_share_no_multiple_of_8_are_refused_with_the_count",
    ),
    ("gptq", "experts stacked in one tensor", REFUSED_STACKED),
    ("awq", "experts stacked in one tensor", REFUSED_STACKED),
    ("awq", "`gemv`, `gemv_fast`", "test_awq::test_gemv_layouts_are_refused_by_name"),
    ("awq", "`llm-awq`, `exllama`, `marlin`, `ipex`", "test_awq::test_other_versions_are_refused_by_name"),
    ("awq", "words along K under the label gemm", "test_awq::test_a_gemv_file_labelled_gemm_is_seen_by_its_shape"),
    ("auto-round", "other packings, data types, static int activations", "test_autoround::test_what_is_not_read_says_so"),
    (
        "compressed-tensors",
        "`marlin-24`, `sparse-24-bitmask`, `sparse-bitmask`, `dense`",
        "test_compressed_tensors::test_old_layouts_are_refused_by_name",
    ),
    (
        "compressed-tensors",
        "`sparsity_config`, `transform_config`",
        "test_compressed_tensors::test_sparse_and_rotated_checkpoints_are_refused",
    ),
    (
        "compressed-tensors",
        "asymmetric activations, dynamic ones by tensor, floats of other widths",
        "test_compressed_tensors::test_activations_that_are_not_read_say_so",
    ),
    (
        "compressed-tensors",
        "stacked experts whose gate and up scalars differ",
        "test_experts::test_a_gate_with_a_scalar_of_its_own_is_refused",
    ),
    ("modelopt", "SVDQuant, unknown algorithms", "test_modelopt::test_other_algorithms_are_refused_by_name"),
    (
        "quark",
        "`mx` values, other widths and axes, dynamic weights",
        "test_quark::test_settings_that_are_not_read_say_so",
    ),
    (
        "quark",
        "run-time rotations, asymmetric activations, two stages of values, other pack methods",
        "test_quark::test_variants_that_are_not_read_say_so",
    ),
    ("bitnet", "online mode, inner norms, other classes", "test_bitnet::test_what_is_not_read_says_so"),
    ("hqq", "axis 0 as a quantized layer (read as 16-bit with `plain=True`)", "test_hqq::test_axis_0_is_refused_with_the_way_out"),
    ("hqq", "quantized scales", "test_hqq::test_quantized_scales_are_refused"),
    ("torchao", "integer groups (`IntxWeightOnlyConfig`)", "test_torchao::test_integer_groups_are_refused_by_name"),
    ("torchao", "int4, NVFP4, per-module configs", "test_torchao::test_other_configs_are_refused_by_name"),
    ("torchao", "configs of older versions", "test_torchao::test_a_config_of_older_versions_is_refused"),
    ("ours", "another layout version", "test_saving::test_another_layout_version_is_refused_and_says_how_to_convert"),
    ("ours", "a later format version", "test_saving::test_a_later_format_version_is_refused"),
    ("others", "bitsandbytes, GGUF, AQLM, VPTQ, HIGGS", "test_registry::test_formats_that_stay_outside_say_why"),
    ("others", "an unknown `quant_method`", "test_registry::test_an_unknown_method_gets_the_nearest_name"),
]


def read_table() -> list[list[str]]:
    """[method, spec lines, fixtures]: every checkpoint of tests/golden, by the specs of its layers."""
    found: dict[tuple[str, str], list[str]] = {}
    for folder in sorted(f for f in GOLDEN.iterdir() if (f / "expected.safetensors").exists()):
        reports = inspect(folder, options=ASKED.get(folder.name))
        specs = ", ".join(sorted({f"`{report.spec}`" for report in reports}))
        found.setdefault((read_config(folder).method, specs), []).append(f"`{folder.name}`")
    return [[f"`{method}`", specs, ", ".join(names)] for (method, specs), names in sorted(found.items())]


def refused_table() -> list[list[str]]:
    """[method, variant, test]; tests/test_docs.py checks that the tests named on a page exist."""
    return [[f"`{method}`", what, f"`{test}`"] for method, what, test in REFUSED]


def experts_table() -> list[list[str]]:
    """[method, one by one, stacked]: fixtures by what `inspect` says of them, refusals by their tests."""
    apart = "`test_experts::test_experts_become_one_weight`"
    refused = {"gptq": REFUSED_STACKED, "awq": REFUSED_STACKED}
    cells: dict[str, list[str]] = {}
    for folder in sorted(path.parent for path in GOLDEN.glob("*/expected.safetensors")):
        stacked = cells.setdefault(read_config(folder).method, [])
        if any(len(report.shape) == 3 for report in inspect(folder, options=ASKED.get(folder.name))):
            stacked.append(f"`{folder.name}`")
    rows = []
    for method, stacked in sorted(cells.items()):
        there = ", ".join(stacked) or (f"refused: `{refused[method]}`" if method in refused else "no exporter is known to write it")
        rows.append([f"`{method}`", "always stacked" if method == "mxfp4" else apart if method in ONE_BY_ONE else "", there])
    return rows
