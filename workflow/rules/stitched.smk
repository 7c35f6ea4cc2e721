rule stitched_plane:
    input:
        manifest=layout.manifest,
    output:
        directory(layout.plane),
    log:
        layout.log("stitched_plane", PLANE),
    benchmark:
        layout.benchmark("stitched_plane", PLANE)
    conda:
        "../envs/tilewright.yaml"
    threads: threads("stitched_plane")
    resources:
        **resources_of("stitched_plane"),
    params:
        voxel_um=experiment.voxel_um,
        saturation_counts=experiment.options("camera")["saturation_counts"],
        output=experiment.options("output", "ome_zarr_version"),
    script:
        "../../scripts/stitched_plane.py"


# In place of the one in qc_tiles.smk.
rule qc_cycle:
    input:
        plane=files.of_cycle(layout.plane),
    output:
        stitched_json=layout.qc("stitched", "json"),
        stitched_png=quality_picture("stitched"),
    log:
        layout.log("qc_cycle", CYCLE),
    benchmark:
        layout.benchmark("qc_cycle", CYCLE)
    priority: AFTER_STITCH
    conda:
        "../envs/tilewright.yaml"
    threads: threads("qc_cycle")
    resources:
        **resources_of("qc_cycle"),
    params:
        stages=["stitched"],
        channels=lambda wildcards: [
            (name, "") for name in files.channels_of_cycle(wildcards)
        ],
    script:
        "../../scripts/quality.py"
