"""Stand-ins of five public workflows: each ends, on accounts that are allowed, and in the ledger.

Each Snakefile names its model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.cluster_runs import dump, foreign, rule_of
from tests.support.slurm_cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1800)]

#: The user's default account, clive, is none of them.
ALLOWED = {"maigan", "brusko"}
WORKFLOWS = {
    "rna_seq": {
        "star_index": 1, "align": 3, "rseqc_gtf2bed": 1, "rseqc": 9, "multiqc": 1,
        "count_matrix": 1, "deseq2_init": 1, "pca": 1, "deseq2": 2,
    },
    "dna_seq": {
        "genome_faidx": 1, "bwa_index": 1, "trim_reads_pe": 2, "map_reads": 2,
        "mark_duplicates": 2, "recalibrate_base_qualities": 2, "call_variants": 4,
        "combine_calls": 2, "genotype_variants": 2, "merge_variants": 1, "hard_filter_calls": 2,
        "annotate_variants": 1, "multiqc": 1,
    },
    "nanopore": {
        "download_model": 1, "basecall": 2, "demultiplex": 2, "convert": 4, "compress": 4,
        "generate_stats": 4, "combine_stats": 1, "make_plots": 2,
    },
    "metagenome": {
        "quality_control": 2, "run_spades": 2, "metabat": 2, "predict_genes_genomes": 2,
        "index_genomes": 1, "align_reads_to_genomes": 2, "mapping_stats_genomes": 2,
        "multiqc_mapping_genome": 1, "pileup_MAGs": 2, "combine_coverages_MAGs": 1,
    },
    "population": {
        "mapping_map_reads_sort_reads_trim_reads": 3, "mark_duplicates": 3,
        "call_chr1_call_variants_combine_calls": 1, "call_chr2_call_variants_combine_calls": 1,
        "merge_variants": 1, "filtering_hard_filter_calls_merge_calls_select_calls": 1,
        "multiqc": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_public_workflow_ends_on_allowed_accounts(
    quiet_slurm: Cluster, tmp_path: Path, name: str
) -> None:
    run = foreign(quiet_slurm, tmp_path, name, {"allowed": sorted(ALLOWED)})
    run.run(timeout_s=600)
    jobs = run.check_placed(ALLOWED)
    assert Counter(map(rule_of, jobs)) == WORKFLOWS[name], dump(run.events)
    assert not run.causes(), dump(run.events)
    run.check_limits()
